"""What engines and daemons publish of their caches (vLLM's KV events), read by placement and by the index alike."""
