"""What changes a request's KV beside its tokens, out of vLLM's Request. Knows its attributes, imports no vLLM.

Raises nothing: what can't be described is said by `bypass_reason`, and such a request does not use the store.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from mooncask.engine_adapter.vllm.key_chain import BlockExtras, Item
from mooncask.errors import MooncaskError

Digest = Callable[[Path], str]
"""Of the weights in a folder."""


class LoraDigests:
    """Digests of LoRA adapters by their files' contents: an adapter that is replaced under its name is another one."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._known: dict[tuple[str, tuple[tuple[str, int, int], ...]], bytes] = {}

    def of(self, path: str) -> bytes:
        """Raises MooncaskError or OSError when the folder can't be read or holds no safetensors."""
        files = sorted(Path(path).iterdir())
        stamp = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())
        key = (path, stamp)
        if key not in self._known:
            config = Path(path) / "adapter_config.json"
            text = config.read_bytes() if config.exists() else b""
            self._known[key] = self._digest(Path(path)).encode() + sha256(text).digest()
        return self._known[key]


def describe(request: Any, loras: LoraDigests) -> tuple[BlockExtras, str]:
    """The extras, and why the request must do without the store (empty: it need not)."""
    if request.resumable:
        return BlockExtras(), "it is a streaming session, whose last token may be taken back after it has a key"
    try:
        lora = loras.of(request.lora_request.lora_path) if request.lora_request is not None else b""
    except (MooncaskError, OSError) as error:
        return BlockExtras(), f"its LoRA adapter can't be told from others: {error}"
    items: list[Item] = []
    for feature in request.mm_features:
        if not isinstance(feature.identifier, str) or not feature.identifier:
            return BlockExtras(), f"a {feature.modality} without an identifier"
        place = feature.mm_position
        items.append(Item(f"{feature.modality}\0{feature.identifier}", place.offset, place.length))
    items.sort(key=lambda item: item.offset)
    embeds = None if request.prompt_embeds is None else _embeds_digest(request.prompt_embeds)
    return BlockExtras(lora, tuple(items), embeds), ""


def _embeds_digest(embeds: Any) -> Callable[[int, int], bytes]:
    """`embeds` is a tensor [prompt tokens, hidden size]."""
    import torch

    def digest(start: int, stop: int) -> bytes:
        part = embeds[start:stop]
        if not part.shape[0]:
            return b""
        data = part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        return sha256(f"{start} {part.dtype} {list(part.shape)}".encode() + data).digest()

    return digest
