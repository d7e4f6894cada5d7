"""Request bodies: decoded, timed, hashed beside reception, and checked before anything is published."""
