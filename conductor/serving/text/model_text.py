"""One model's tokeniser files: text to tokens, with what was tokenised before reused.

Text is cut at special tokens, which tokenisers never merge with what stands around them; so the tokens of a known beginning
that ends behind one are the beginning of the tokens. An answer's own tokens are remembered with its text: the next turn then
begins with exactly those, which cutting the text anew might not give.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mooncask.conductor.serving.text.template import Chat, ChatTemplate
from mooncask.errors import BadRequest, ConfigError

KNOWN_TOKENS_MAX = 8_000_000
"""Tokens of remembered beginnings, over all of them."""
KNOWN_MIN_CHARACTERS = 200
"""Shorter beginnings are tokenised as fast as they are found."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text and as tokens; `reused` of them were known before."""

    text: str
    tokens: list[int]
    reused: int = 0


class ModelText:
    """Not safe for concurrent use: each process of the pool has its own. Raises ConfigError for a folder without tokeniser."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        if not (folder / "tokenizer.json").is_file():
            raise ConfigError("models.*.tokenizer", str(folder), "must be a folder with tokenizer.json")
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        special = [token for token in self.tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special = re.compile("|".join(re.escape(token.content) for token in special) or "(?!)")
        settings = _json(folder / "tokenizer_config.json")
        self._template = _template(folder, settings)
        self.stop_tokens = _stop_tokens(folder, settings, self.tokenizer)
        self._known: OrderedDict[bytes, list[int]] = OrderedDict()
        self._known_tokens = 0

    def prompt(self, messages: Chat, tools: Sequence[Any] | None, answer_next: bool = True) -> Rendered:
        """Raises BadRequest: no chat template, or it refuses the messages."""
        if self._template is None:
            raise BadRequest("this model has no chat template; use /v1/completions")
        return self.tokens(self._template.render(messages, tools, answer_next))

    def tokens(self, text: str) -> Rendered:
        """Special tokens in the text count as such."""
        ends = [match.end() for match in self._special.finditer(text)]
        digests = _digests(text, ends)
        for end, digest in zip(reversed(ends), reversed(digests), strict=True):
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
                return self._remembering(text, [*known, *self._encode(text[end:])], len(known), ends, digests)
        return self._remembering(text, self._encode(text), 0, ends, digests)

    def remember(self, text: str, tokens: Sequence[int]) -> None:
        """This text is these tokens: a prompt with its answer. Only what ends with a special token can be a beginning."""
        if text and len(text) >= KNOWN_MIN_CHARACTERS and self._special.search(text, max(0, len(text) - 64)):
            last = max(match.end() for match in self._special.finditer(text, max(0, len(text) - 256)))
            if last == len(text):
                self._keep(_digests(text, [last])[0], list(tokens))

    def _remembering(
        self, text: str, tokens: list[int], reused: int, ends: Sequence[int], digests: Sequence[bytes]
    ) -> Rendered:
        if ends and ends[-1] >= KNOWN_MIN_CHARACTERS:
            tail = self._encode(text[ends[-1] :])
            self._keep(digests[-1], tokens[: len(tokens) - len(tail)])
        return Rendered(text, tokens, reused)

    def _keep(self, digest: bytes, tokens: list[int]) -> None:
        before = self._known.pop(digest, [])
        self._known[digest] = tokens
        self._known_tokens += len(tokens) - len(before)
        while self._known_tokens > KNOWN_TOKENS_MAX:
            self._known_tokens -= len(self._known.popitem(last=False)[1])

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def _digests(text: str, ends: Sequence[int]) -> list[bytes]:
    """The digest of the text up to each of its ends."""
    state, begin, found = xxhash.xxh3_128(), 0, []
    for end in ends:
        state.update(text[begin:end].encode("utf-8", "surrogatepass"))
        found.append(state.digest())
        begin = end
    return found


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _template(folder: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    source = path.read_text() if path.is_file() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return ChatTemplate(source, {name: _content(settings.get(name)) for name in names if settings.get(name)})


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _stop_tokens(folder: Path, settings: dict[str, Any], tokenizer: Any) -> list[int]:
    """Tokens that end an answer: of the generation config, and the tokeniser's end of sequence."""
    told = _json(folder / "generation_config.json").get("eos_token_id", [])
    found = set(told if isinstance(told, list) else [told])
    if settings.get("eos_token"):
        found.add(tokenizer.token_to_id(_content(settings["eos_token"])))
    return sorted(int(token) for token in found if token is not None)
