"""For other routers: which engine holds how much of a prompt, learned from the engines' own KV events. Off unless configured."""
