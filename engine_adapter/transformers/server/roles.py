"""One model in the role that the Conductor wants it to have: the engine of either role is made when it is first needed.

After a change of role what was begun ends in the old one; new calls of the old role are refused as busy.
"""

import threading
from collections.abc import Callable

from mooncask.client.worker_api import DecodeCall, PrefillCall, Report, Role
from mooncask.engine_adapter.transformers.server.answer import Tell
from mooncask.engine_adapter.transformers.server.decode_engine import DecodeEngine
from mooncask.engine_adapter.transformers.server.prefill_engine import PrefillEngine
from mooncask.errors import Busy


class Roles:
    """Every method may be called from any thread."""

    def __init__(
        self, role: Role, make_prefill: Callable[[], PrefillEngine], make_decode: Callable[[], DecodeEngine]
    ) -> None:
        self._make_prefill, self._make_decode = make_prefill, make_decode
        self._lock = threading.Lock()
        self._prefill: PrefillEngine | None = None
        self._decode: DecodeEngine | None = None
        self.role = role
        self.draining = False
        self.set(role)

    def set(self, role: Role) -> None:
        """Takes new calls of this role from now on, and of no other. Making an engine takes as long as filling its memory."""
        with self._lock:
            if role is Role.PREFILL and self._prefill is None:
                self._prefill = self._make_prefill()
            if role is Role.DECODE and self._decode is None:
                self._decode = self._make_decode()
            self.role = role

    def prefill(self, call: PrefillCall, tell: Tell) -> Callable[[], None]:
        """Begins, and returns what cancels it. Raises Busy, ContextTooLong."""
        engine = self._prefill if self._takes(Role.PREFILL) else None
        if engine is None:
            raise Busy(f"this worker takes no prefill (its role is {self.role})")
        return engine.submit(call, tell)

    def decode(self, call: DecodeCall, tell: Tell) -> Callable[[], None]:
        """Begins, and returns what cancels it. Raises Busy, ContextTooLong."""
        engine = self._decode if self._takes(Role.DECODE) else None
        if engine is None:
            raise Busy(f"this worker takes no answers (its role is {self.role})")
        return engine.submit(call, tell)

    def cancel(self, request: str) -> None:
        for engine in (self._prefill, self._decode):
            if engine is not None:
                engine.cancel(request)

    def pause(self, seconds: float) -> float:
        """Decode stands still for so long; 0 ends that. Returns what of it is done."""
        return self._decode.pause(seconds) if self._decode is not None else 0.0

    def report(self, name: str, incarnation: str) -> Report:
        """How it is now, both engines together. The steps are told once."""
        prefill = self._prefill.load() if self._prefill is not None else None
        decode = self._decode.load() if self._decode is not None else None
        return Report(
            name=name,
            incarnation=incarnation,
            role=self.role,
            waiting=(prefill.waiting if prefill else 0) + (decode.loading if decode else 0),
            running=(prefill.running if prefill else 0) + (decode.running if decode else 0),
            queued_tokens=prefill.queued_tokens if prefill else 0,
            context_tokens=decode.context_tokens if decode else 0,
            free_slots=decode.free_slots if decode else 0,
            free_tokens=decode.free_slots * decode.slot_tokens if decode else 0,
            requests=[*(prefill.requests if prefill else ()), *(decode.requests if decode else ())],
            steps=self._decode.take_steps() if self._decode is not None else [],
            draining=self.draining,
        )

    @property
    def busy(self) -> bool:
        """Something runs or waits here."""
        return any(engine is not None and engine.load().requests for engine in (self._prefill, self._decode))

    def close(self) -> None:
        """Ends everything as cancelled."""
        for engine in (self._prefill, self._decode):
            if engine is not None:
                engine.close()

    def _takes(self, role: Role) -> bool:
        return self.role is role and not self.draining
