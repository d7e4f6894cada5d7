"""The papers' figures and tables: ours beside the published value. See docs/papers/."""
