"""How many workers of a model should prefill and how many decode, ahead of the daily tide: from recorded load to roles."""
