"""One block on its way out over HTTP: its bytes stay in use until the transport lets go of them.

The transport keeps a reference to what it has not sent yet, long after `write` has returned. So the right to the extent
ends in exactly one place: when the array that was handed to it is collected.
"""

import asyncio
import weakref
from collections.abc import Callable

import numpy as np

from mooncask.tiers.block import Extent
from mooncask.tiers.store import Store


def outgoing(
    store: Store, extent: Extent, start: int, stop: int, seconds_max: float, too_slow: Callable[[], None]
) -> memoryview:
    """Bytes [start, stop) of a held extent; takes the caller's reference over. `stop` > `start`.

    `too_slow` is called when the bytes are not gone after `seconds_max`; it has to end the transport.
    """
    loop = asyncio.get_running_loop()
    # Made of a slice of the memory, not sliced from an array: numpy would refer past this array to the memory itself.
    array = np.frombuffer(store.view(extent)[start:stop], np.uint8)
    timer = loop.call_later(seconds_max, too_slow)

    def ended() -> None:
        timer.cancel()
        store.drop(extent)

    # The collector may run in any thread; the store belongs to the loop's.
    finalizer = weakref.finalize(array, _call_on_loop, loop, ended)
    finalizer.atexit = False
    return array.data


def _call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
