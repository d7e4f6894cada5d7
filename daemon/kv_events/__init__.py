"""What this node holds, told to routers in vLLM's event format over ZeroMQ (docs/KV-EVENTS.md). Off unless configured."""
