"""Workers as servers: chunked prefill, and continuous batching of many answers at a time."""
