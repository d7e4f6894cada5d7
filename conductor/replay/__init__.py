"""Replaying a trace through one cache: hit rates of eviction policies."""
