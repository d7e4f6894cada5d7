"""System prompts that the operator has declared public: all tenants share their KV. From a text to the tokens with which
prompts begin that have it, and from a prompt's tokens to how many of them are public.

What is behind the public tokens has its tenant's salt; a prompt that leaves a public one in its middle shares it up to there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mooncask.conductor.serving.config import PublicSection
from mooncask.conductor.serving.text.texts import Texts
from mooncask.errors import ConfigError, MooncaskError

CONTINUATIONS = ("0", "Why?")
"""Two first questions that have nothing in common: what both renderings begin with is the system prompt alone."""
PROMPTS_MAX = 256


@dataclass(frozen=True, slots=True)
class PublicPrompts:
    """Beginnings by model, in token ids."""

    _beginnings: Mapping[str, list[list[int]]] = field(default_factory=dict)

    def tokens(self, model: str, tokens: Sequence[int], block_tokens: int) -> int:
        """How many tokens the prompt has in common with one of them, in whole blocks. A prompt is never public as a whole."""
        common = (common_tokens(tokens, beginning, block_tokens) for beginning in self._beginnings.get(model, []))
        return max(common, default=0)


def common_tokens(prompt: Sequence[int], beginning: Sequence[int], block_tokens: int) -> int:
    """Length of what both begin with, in whole blocks. Compares block by block, which costs the interpreter little."""
    end = 0
    while end + block_tokens <= min(len(prompt), len(beginning)):
        if prompt[end : end + block_tokens] != beginning[end : end + block_tokens]:
            break
        end += block_tokens
    return end


async def read_public_prompts(sections: Mapping[str, PublicSection], texts: Texts) -> PublicPrompts:
    """Renders each as its model's chat template renders a system message. Raises ConfigError."""
    if len(sections) > PROMPTS_MAX:
        raise ConfigError("public", str(len(sections)), f"there may be {PROMPTS_MAX} public prompts")
    beginnings: dict[str, list[list[int]]] = {}
    for name, section in sections.items():
        beginnings.setdefault(section.model, []).append(await _beginning(name, section, texts))
    return PublicPrompts(beginnings)


async def _beginning(name: str, section: PublicSection, texts: Texts) -> list[int]:
    text, key = _text(name, section), f"public.{name}"
    try:
        one, other = [
            await texts.prompt(
                section.model, [{"role": "system", "content": text}, {"role": "user", "content": question}], None
            )
            for question in CONTINUATIONS
        ]
    except MooncaskError as exc:
        raise ConfigError(key, section.model, f"can't be rendered: {exc.message}") from exc
    return one.tokens[: common_tokens(one.tokens, other.tokens, 1)]


def _text(name: str, section: PublicSection) -> str:
    if bool(section.text) == bool(section.file):
        raise ConfigError(f"public.{name}", "", "give either text or file")
    if section.text:
        return section.text
    try:
        return Path(section.file).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"public.{name}.file", section.file, f"cannot be read: {exc}") from exc
