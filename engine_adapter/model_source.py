"""What tells one model from another for an engine that gives only a path or a name; no engine and no torch needed.

A folder on this machine is told by its weights and its config.json, wherever it lies; a name on a hub by itself, and by its
revision where the engine knows one (which is the adapter's to add).
"""

from hashlib import sha256
from pathlib import Path

from mooncask.engine_adapter.weights import weights_digest
from mooncask.errors import ConfigError


def model_source(path: str) -> dict[str, str]:
    """Family fields `model`, `weights` and `config` of the model at `path`, a folder or a name."""
    folder = Path(path)
    if not path or not folder.is_dir():
        return {"model": path, "weights": "", "config": ""}
    config = folder / "config.json"
    digest = sha256(config.read_bytes()).hexdigest()[:32] if config.is_file() else ""
    return {"model": folder.resolve().name, "weights": _weights(folder), "config": digest}


def _weights(folder: Path) -> str:
    try:
        return weights_digest(folder)
    except ConfigError:
        return f"unread {folder.resolve()}"  # other formats: told apart by where they lie
