"""Clients that ask one request after the other, and what became of each; and how that compares with what was billed."""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import requests
from served_pool import Stream
from torture_pool import DOORS, Row, TorturePool

ANSWER_TOKENS = 120
WHOLE, BROKEN, ERROR_EVENT, UNSERVED = "whole", "broken connection", "error event", "unserved"
FLUSH_SECONDS = 1.0
"""What a Conductor that is killed may not have billed yet, with a machine that is busy."""


@dataclass(slots=True)
class Asked:
    """One request: of whom, at which start of which Conductor, and how it ended. Times are wall-clock seconds."""

    tenant: str
    door: str
    generation: int
    prompt_tokens: int
    sent: float
    ended: float = 0.0
    how: str = ""
    answer_id: str = ""

    @property
    def dispatched(self) -> bool:
        """A dispatcher had it: the door itself turns away what nobody serves at the moment."""
        return self.how != UNSERVED


@dataclass
class Load:
    """`generation`: how often each Conductor was started; `open`: those that take requests."""

    pool: TorturePool
    answers: list[tuple[list[int], list[int]]]
    random: random.Random
    asked: list[Asked] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    generation: Counter[str] = field(default_factory=Counter)
    killed: dict[tuple[str, int], float] = field(default_factory=dict)
    """When which start of which Conductor was killed."""
    open: set[str] = field(default_factory=lambda: set(DOORS))
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, tenant: str) -> None:
        while not self.stop.is_set():
            with self._lock:
                door = self.random.choice(sorted(self.open)) if self.open else ""
                prompt, answer = self.random.choice(self.answers)
                streamed = self.random.random() < 0.5
                one = Asked(tenant, door, self.generation[door], len(prompt), time.time())
            if door:
                self._ask(one, prompt, answer, streamed)
                one.ended = time.time()
                with self._lock:
                    self.asked.append(one)
            if one.how != WHOLE:
                self.stop.wait(0.2)

    def close_door(self, door: str) -> None:
        """Its Conductor is about to be killed."""
        with self._lock:
            self.open.discard(door)
        self.killed[door, self.generation[door]] = time.time()

    def open_door(self, door: str) -> None:
        with self._lock:
            self.generation[door] += 1
            self.open.add(door)

    def whole(self) -> int:
        with self._lock:
            return sum(one.how == WHOLE for one in self.asked)

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(one.how for one in self.asked)

    # --- one request ---

    def _ask(self, one: Asked, prompt: list[int], answer: list[int], streamed: bool) -> None:
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "return_token_ids": True,
            "stream": streamed,
        }
        url, headers = (
            f"{self.pool.conductors[one.door].url}/v1/completions",
            {"Authorization": f"Bearer sk-{one.tenant}"},
        )
        try:
            response = requests.post(url, json=body, headers=headers, stream=streamed, timeout=120)
        except requests.RequestException:
            one.how = BROKEN
            return
        if response.status_code != 200:
            one.how = UNSERVED if " now; try again" in response.text else f"status {response.status_code}"
            self._check_failure(response.text)
            response.close()
        elif streamed:
            self._read(one, Stream(response), answer)
        else:
            whole = response.json()
            one.how, one.answer_id = WHOLE, whole["id"]
            self._check(whole["choices"][0]["token_ids"], answer)

    def _read(self, one: Asked, stream: Stream, answer: list[int]) -> None:
        stream.read()
        if stream.events and stream.events[0].startswith('{"id"'):
            one.answer_id = json.loads(stream.events[0])["id"]
        if stream.whole:
            one.how = WHOLE
            self._check(stream.tokens(), answer)
        elif stream.error is not None:
            one.how = BROKEN
        else:
            one.how = ERROR_EVENT
            if not stream.events or '"error"' not in stream.events[-1]:
                self.wrong.append(f"a stream ended well without an end: {stream.events[-1:]}")
            self._check_failure(stream.events[-1] if stream.events else "")
        stream.close()

    def _check_failure(self, told: str) -> None:
        """A typed error, never a fault of the Conductor."""
        if "internal_error" in told:
            self.wrong.append(told)

    def _check(self, said: list[int], answer: list[int]) -> None:
        if said != answer:
            self.wrong.append(f"said {said}, not {answer}")


@dataclass
class Billing:
    """Which row belongs to which request: a client asks one at a time, so the time when a row was begun names its request."""

    lost: int = 0
    """Whole answers without a row: their Conductor was killed before it had written it."""
    kinds: Counter[str] = field(default_factory=Counter)

    def compare(self, asked: list[Asked], rows: list[Row], load: Load) -> list[str]:
        """What is not as it should be, of one client."""
        faults, left = list[str](), sorted(rows, key=lambda row: row.at)
        for one in sorted(asked, key=lambda one: one.sent):
            mine = [row for row in left if one.sent <= row.at <= one.ended]
            left = [row for row in left if row not in mine]
            faults += [f"{one}: {why}" for why in self._faults(one, mine, load)]
        return faults + [f"nobody asked for {row}" for row in left]

    def _faults(self, one: Asked, rows: list[Row], load: Load) -> list[str]:
        killed = load.killed.get((one.door, one.generation), float("inf"))
        may_be_lost = killed < one.ended + FLUSH_SECONDS
        if len(rows) > 1:
            return [f"billed {len(rows)} times: {rows}"]
        if not rows:
            self.lost += one.how == WHOLE
            return [] if may_be_lost or one.how not in (WHOLE, ERROR_EVENT) else ["is not billed"]
        row, line = rows[0], rows[0].line
        self.kinds[f"{one.how}: {line.outcome}"] += 1
        faults = []
        if one.answer_id and one.answer_id != row.request:
            faults.append(f"is billed as {row.request}")
        if line.prompt_tokens != one.prompt_tokens or line.output_tokens > ANSWER_TOKENS:
            faults.append(f"is billed with wrong counts: {line}")
        if one.how == WHOLE and (line.outcome, line.output_tokens) != ("length", ANSWER_TOKENS):
            faults.append(f"is billed as something else: {line}")
        if one.how not in (WHOLE, BROKEN, ERROR_EVENT) and (
            line.outcome not in ("rejected", "failed") or line.output_tokens
        ):
            faults.append(f"was turned away and is billed: {line}")
        return faults
