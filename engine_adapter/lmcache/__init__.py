"""LMCache with Mooncask as a storage plugin; docs/ENGINES.md has the configuration."""
