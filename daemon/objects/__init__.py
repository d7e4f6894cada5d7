"""Objects of any length on top of blocks: attributes, parts, uploads. Not here: HTTP (`daemon/http/`)."""
