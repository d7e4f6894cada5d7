"""Who asks, what they may, and whose KV they share: keys, classes, token quotas, salts, public prompts."""
