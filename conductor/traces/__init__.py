"""Request traces: read, written, converted and made up."""
