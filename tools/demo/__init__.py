"""`mooncask demo`: the whole pipeline once, with a real model, checked against a run without the store."""
