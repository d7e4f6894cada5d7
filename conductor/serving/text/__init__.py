"""Text to token ids and back: chat template, tokeniser, detokeniser, stop strings."""
