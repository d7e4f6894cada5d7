"""Prefill and decode workers on Hugging Face transformers that exchange KV through the store.

`python -m mooncask.engine_adapter.transformers --role prefill|decode ...` is one worker; `worker_process.py` starts and
asks one. Nothing is imported here: torch and transformers come in with the modules that need them.
"""
