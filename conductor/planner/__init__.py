"""What a cache would be worth: miss-ratio curves from a sample of a trace, and the cheapest hardware that meets an SLO."""
