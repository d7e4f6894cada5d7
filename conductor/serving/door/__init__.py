"""The OpenAI-compatible HTTP door: what clients ask in text, and what they get."""
