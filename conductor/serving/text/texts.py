"""The tokenisers of all models in a pool of processes, so that long prompts don't stand in the way of short answers.

A conversation goes to the same process each time, where its beginning is known. Not here: requests and answers.
"""

import asyncio
import contextlib
import logging
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from mooncask.conductor.serving.text.model_text import ModelText, Rendered
from mooncask.conductor.serving.text.stopping import Detokenizer
from mooncask.conductor.serving.text.template import Chat
from mooncask.errors import NoSuchModel

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 2000
"""Shorter text is tokenised at once: sending it to a process takes longer."""


class Texts:
    """Belongs to the event loop's thread. Making it loads every tokeniser once; the processes load theirs when asked."""

    def __init__(self, folders: Mapping[str, Path], processes: int = 1) -> None:
        self._folders = dict(folders)
        self._here = {model: ModelText(folder) for model, folder in folders.items()}
        self._pool = [self._new_process() for _ in range(processes)]

    def models(self) -> list[str]:
        return sorted(self._here)

    def stop_tokens(self, model: str) -> list[int]:
        return self._model(model).stop_tokens

    def detokenizer(self, model: str) -> Detokenizer:
        return Detokenizer(self._model(model).tokenizer)

    def piece(self, model: str, token: int) -> str:
        """One token as text, for logprobs."""
        return str(self._model(model).tokenizer.decode([token], skip_special_tokens=False))

    async def prompt(
        self, model: str, messages: Chat, tools: Sequence[Any] | None, answer_next: bool = True
    ) -> Rendered:
        """Raises NoSuchModel, BadRequest."""
        here = self._model(model)
        if _characters(messages) <= INLINE_CHARACTERS:
            return here.prompt(messages, tools, answer_next)
        given = list(tools) if tools else None
        return await self._in(self._process(messages), _prompt, model, list(messages), given, answer_next)

    async def tokens(self, model: str, text: str) -> list[int]:
        """Raises NoSuchModel."""
        here = self._model(model)
        if len(text) <= INLINE_CHARACTERS:
            return here.tokens(text).tokens
        return (await self._in(self._process_of(text[:200]), _tokens, model, text)).tokens

    def remember(self, model: str, messages: Chat, text: str, tokens: Sequence[int]) -> None:
        """An answer belongs to its conversation: the next turn begins with exactly these tokens."""
        self._model(model).remember(text, tokens)
        with contextlib.suppress(BrokenExecutor):  # who needs it next starts it anew
            self._pool[self._process(messages)].submit(_remember, model, text, list(tokens))

    def close(self) -> None:
        for process in self._pool:
            process.shutdown(cancel_futures=True)

    def _model(self, model: str) -> ModelText:
        found = self._here.get(model)
        if found is None:
            raise NoSuchModel(model, ", ".join(self.models()))
        return found

    async def _in(self, number: int, work: Callable[..., Rendered], *given: object) -> Rendered:
        """In that process; in a new one when it has died, which is tried once."""
        process = self._pool[number]
        try:
            return await asyncio.wrap_future(process.submit(work, *given))
        except BrokenExecutor as exc:
            log.error("a process of the tokenisers has died, and is started anew: %s", exc)
        if self._pool[number] is process:
            self._pool[number] = self._new_process()
            process.shutdown(wait=False)
        return await asyncio.wrap_future(self._pool[number].submit(work, *given))

    def _new_process(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_load, initargs=(self._folders,))

    def _process(self, messages: Chat) -> int:
        return self._process_of("".join(str(message.get("content"))[:200] for message in list(messages)[:2]))

    def _process_of(self, text: str) -> int:
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) % len(self._pool)


def _characters(messages: Chat) -> int:
    return sum(len(str(message.get("content"))) for message in messages)


# --- in the processes ---

_models: dict[str, ModelText] = {}


def _load(folders: Mapping[str, Path]) -> None:
    _models.update({model: ModelText(folder) for model, folder in folders.items()})


def _prompt(model: str, messages: Chat, tools: Sequence[Any] | None, answer_next: bool) -> Rendered:
    return _models[model].prompt(messages, tools, answer_next)


def _tokens(model: str, text: str) -> Rendered:
    return _models[model].tokens(text)


def _remember(model: str, text: str, tokens: list[int]) -> None:
    _models[model].remember(text, tokens)
