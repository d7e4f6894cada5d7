"""Writes the daemon's own requests as a trace in the Mooncake JSONL form, for `mooncask replay` and `mooncask plan`.

    {"timestamp": 5120, "input_length": 6656, "output_length": 52, "hash_ids": [113..., 7081..., ...]}

`timestamp` is in milliseconds from the file's first record, `input_length` the tokens of the chain that was looked up (whole
blocks only: what is behind the last one is not known here), `output_length` what the hint expected, or 0. What one request is,
`prompts.py` says. A block's id is 48 bits of a keyed hash of its model, tenant and key; the hash's key is random, one a file, and
is kept in memory only: equal blocks of one file have equal ids, and no id leads back to a key, nor to another file's.

Everything has a bound: two files of half of `recorder.bytes_max` each (PATH and, before it, PATH.1), records a file, records
a second (`TraceFile`), requests that wait. A fault of the disk ends the recording and nothing else.

Not here: reading it back (`conductor/traces/jsonl.py`).
"""

import asyncio
import errno
import hashlib
import logging
import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec

from mooncask.daemon.config import RecorderSection
from mooncask.daemon.insight.lookups import Lookup
from mooncask.daemon.namespace_door import block_tokens
from mooncask.daemon.prompts import Prompt, Prompts
from mooncask.errors import ConfigError

log = logging.getLogger(__name__)

BLOCK_TOKENS = 512
"""Tokens of a block where the family does not say: what the public traces mean by a hash id."""
FILE_BYTES_MIN = 64 << 10
RATE_SECONDS = 10.0
"""What is written is compared with `recorder.rate_max` over so long."""
HUB_FOLLOWERS = 8
"""A block that so many different ones follow is a beginning that conversations share."""
BEGINNINGS_MAX = 16_384
"""Blocks whose followers are counted, those used last; about 3 MB."""
WAITING_MAX = 8192
"""Requests that wait to be written; more are dropped and counted."""
BATCH = 256
"""Requests written in one go, in a thread."""
TICK_SECONDS = 1.0

_ID_BYTES = 6
_ID_END = 1 << (8 * _ID_BYTES)


class Sampler:
    """Which conversations are recorded: all, until there are more records a second than there may be; then half of them,
    then a quarter, and so on. A conversation is the hint's; without one, what follows the beginning that many share.
    """

    def __init__(self, rate_max: int, share: float = 1.0) -> None:
        self.share = share
        self._count_max = rate_max * RATE_SECONDS
        self._count = 0
        self._since = 0.0
        self._followers: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def keeps(self, seconds: float, ids: Sequence[int], conversation: int) -> bool:
        """Whether a request is recorded; `conversation` is a salted number as the ids are, 0 = unknown."""
        name = conversation or self._after_the_shared(ids)
        if name >= self.share * _ID_END:
            return False
        if seconds - self._since > RATE_SECONDS:
            self._since, self._count = seconds, 0
        self._count += 1
        if self._count > self._count_max:
            self.share /= 2
            self._since, self._count = seconds, 0
        return True

    def _after_the_shared(self, ids: Sequence[int]) -> int:
        """The block behind the last one that many different ones have followed; the first where there is none."""
        name = ids[0]
        for here, follower in pairwise(ids):
            followers = self._followers.get(here, ())
            if follower not in followers and len(followers) < HUB_FOLLOWERS:
                followers = (*followers, follower)
            self._followers[here] = followers
            self._followers.move_to_end(here)
            if len(followers) == HUB_FOLLOWERS:
                name = follower
        while len(self._followers) > BEGINNINGS_MAX:
            self._followers.popitem(last=False)
        return name


class TraceFile:
    """The file being written and the one before it. Synchronous; one thread at a time."""

    def __init__(self, settings: RecorderSection, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._settings = settings
        self._random = random
        self._path = Path(settings.path)
        self._bytes_max = settings.bytes_max // 2
        self._file: BinaryIO | None = None
        self._share = 1.0

    def open(self) -> None:
        """Begins a new file; one that is there is kept as PATH.1. Raises OSError."""
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_file()):
            raise FileExistsError(errno.EEXIST, "it is there and no regular file")
        if self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "wb")
        self._salt = self._random(32)
        self._sampler = Sampler(self._settings.rate_max, self._share)
        self._began: float | None = None
        self._bytes = self._records = 0

    def write(self, prompts: Sequence[Prompt]) -> Mapping[str, int]:
        """Appends them in order; how many were written and left out. Raises OSError."""
        counters = Counter[str]()
        for prompt in prompts:
            if self._append(prompt):
                counters["recorder_records"] += 1
            else:
                counters["recorder_left_out"] += 1
        if self._file is not None:
            self._file.flush()
        return counters

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, prompt: Prompt) -> bool:
        assert self._file is not None
        ids = [self._id(prompt.model, key) for key in prompt.keys]
        conversation = self._id(prompt.model, prompt.conversation.to_bytes(8, "big")) if prompt.conversation else 0
        if not self._sampler.keeps(prompt.seconds, ids, conversation):
            return False
        line = self._line(prompt, ids, conversation)
        if len(line) > self._bytes_max:
            return False
        if self._bytes + len(line) > self._bytes_max or self._records >= self._settings.records_max:
            self._turn_over()
            return self._append(prompt)
        self._file.write(line)
        self._bytes += len(line)
        self._records += 1
        return True

    def _line(self, prompt: Prompt, ids: Sequence[int], conversation: int) -> bytes:
        if self._began is None:
            self._began = prompt.seconds
        tokens = block_tokens(prompt.family) or BLOCK_TOKENS
        fields: dict[str, object] = {
            "timestamp": int(1000 * (prompt.seconds - self._began)),
            "input_length": len(ids) * tokens,
            "output_length": prompt.output_tokens,
            "hash_ids": ids,
        }
        if conversation:
            fields |= {"conversation": conversation, "turn": prompt.turn}
        if self._sampler.share < 1:
            fields["share"] = self._sampler.share
        return msgspec.json.encode(fields) + b"\n"

    def _turn_over(self) -> None:
        """A new file, which begins with twice the share in case there is less to do now."""
        self._share = min(1.0, 2 * self._sampler.share)
        self.close()
        self.open()

    def _id(self, model: bytes, name: bytes) -> int:
        digest = hashlib.blake2b(model + name, key=self._salt, digest_size=_ID_BYTES)
        return int.from_bytes(digest.digest(), "big")


class Recorder:
    """Listens to look-ups on the event loop and writes in a thread."""

    def __init__(self, file: TraceFile, counters: Counter[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._counters = counters
        self._clock = clock
        self._prompts = Prompts()
        self._waiting: list[Prompt] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    @classmethod
    async def open(cls, settings: RecorderSection, counters: Counter[str]) -> "Recorder":
        """Raises ConfigError where nothing can be written."""
        if settings.bytes_max < 2 * FILE_BYTES_MIN:
            raise ConfigError("recorder.bytes_max", str(settings.bytes_max), "at least 128KiB")
        file = TraceFile(settings)
        try:
            await asyncio.to_thread(file.open)
        except OSError as error:
            raise ConfigError(
                "recorder.path", f'"{settings.path}"', f"must be a file that can be written ({error.strerror})"
            ) from error
        return cls(file, counters)

    def looked(self, lookups: Sequence[Lookup]) -> None:
        """An observer of look-ups."""
        if not self._ended:
            for lookup in lookups:
                self._prompts.see(lookup)
            self._schedule()

    async def close(self) -> None:
        """Writes what is left."""
        self._end_timer()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._take(self._prompts.rest())
        await self._write_all()
        self._ended = True
        await asyncio.to_thread(self._file.close)

    def _schedule(self) -> None:
        if self._timer is None and len(self._prompts):
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self._take(self._prompts.due(self._clock()))
        if self._waiting and self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
            self._writing.add_done_callback(self._written)
        self._schedule()

    def _take(self, prompts: list[Prompt]) -> None:
        room = max(0, WAITING_MAX - len(self._waiting))
        self._waiting += prompts[:room]
        self._counters["recorder_dropped"] += len(prompts[room:])

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._writing = None

    async def _write_all(self) -> None:
        while self._waiting and not self._ended:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                self._counters.update(await asyncio.to_thread(self._file.write, batch))
            except OSError as error:
                self._ended = True
                self._counters["recorder_failed"] += 1
                log.error("recorder: nothing is recorded any more: %s", error)
