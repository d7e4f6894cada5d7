"""Token ids in, token ids out: which workers do it, and what happens when one of them fails."""
