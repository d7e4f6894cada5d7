"""Chunked pipeline parallelism: several processes hold a part of the layers each and write one reservation together."""
