"""Context caching: prompts that a tenant keeps ready, by a public API of its own."""
