"""vLLM's KV connector for the store: `--kv-transfer-config '{"kv_connector": "MooncaskConnector",
"kv_connector_module_path": "mooncask.engine_adapter.vllm", ...}'`. docs/ENGINES.md says how to set it up.

`connector.py` is what vLLM calls and the one module here (with `stats.py`) that imports vLLM; it is brought in when its
name is asked for. Decisions are in modules that know neither vLLM nor torch: `key_chain.py`, `scheduling.py`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MooncaskConnector":
        from mooncask.engine_adapter.vllm.connector import MooncaskConnector

        return MooncaskConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
