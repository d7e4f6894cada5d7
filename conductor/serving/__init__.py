"""The live Conductor: one OpenAI-compatible door before pools of prefill and decode workers."""
