"""The thread that gives leases back: it ends when it is told to, whatever it is doing then."""

import threading
from types import FrameType
from typing import Any

from mooncask.client.flusher import Flusher

SECONDS = 10.0


class Nothing:
    """A client that never has anything to send."""

    def flush(self) -> bool:
        return False


def test_being_stopped_right_before_it_goes_to_sleep_ends_it() -> None:
    client = Nothing()
    flusher = Flusher(client)
    stopper = threading.Thread(target=flusher.stop, daemon=True)

    def stop_it_here(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is threading.Event.clear.__code__ and not stopper.ident:
            stopper.start()
            assert flusher._stopped.wait(SECONDS) and flusher._awake.wait(SECONDS)

    threading.setprofile(stop_it_here)
    try:
        flusher.wake()
    finally:
        threading.setprofile(None)
    flusher._stopped.wait(SECONDS)
    stopper.join(SECONDS)
    assert not stopper.is_alive(), "it went to sleep although it was stopped"
