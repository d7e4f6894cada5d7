"""S3's operations: which one a request is, what each does, and how its answers look."""
