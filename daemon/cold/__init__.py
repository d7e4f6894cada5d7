"""The tier below NVMe: an S3 bucket that all nodes share (docs/COLD.md)."""
