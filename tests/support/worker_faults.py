"""What a scripted worker can do wrong, by name, in each role: scripts for `ScriptedWorker.faults`."""

import asyncio
from collections.abc import Awaitable, Callable

from scripted_answers import Broken, Script, Stream, answer_rightly, done, say

from mooncask.client.worker_api import Admitted, DecodeCall, FailureKind, PrefillCall, Started, Tokens


def _decode(fault: Callable[[Stream, DecodeCall], Awaitable[None]]) -> Script:
    async def script(stream: Stream, call: PrefillCall | DecodeCall) -> None:
        assert isinstance(call, DecodeCall)
        await fault(stream, call)

    return script


def _half(call: DecodeCall) -> int:
    return max(1, call.max_tokens // 2)


async def _bounces(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.failure(FailureKind.BUSY)


async def _refuses(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.failure(FailureKind.REFUSED)


async def _fails(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.failure(FailureKind.INTERNAL)


async def _breaks_at_once(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    raise Broken


async def _is_silent(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await asyncio.Event().wait()


async def _babbles(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.raw(b"\xff\xfe{]\n")


async def _nests(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.raw(b'{"event": "admitted", "more": ' + b"[" * 100_000 + b"\n")


async def _never_ends_its_line(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    for _ in range(20):
        await stream.raw(b"x" * (1 << 20))
    await asyncio.Event().wait()


async def _ends_early(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())  # and a well-formed end of the response


async def _breaks_off(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    raise Broken


async def _breaks_off_before_its_end(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens)
    raise Broken


async def _loses_kv(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.failure(FailureKind.KV_LOST)


async def _falls_silent(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    await asyncio.Event().wait()


async def _says_tokens_first(stream: Stream, call: DecodeCall) -> None:
    await say(stream, call, 1)


async def _says_done_first(stream: Stream, call: DecodeCall) -> None:
    await stream.line(done(stream))


async def _says_what_a_prefill_says(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted(), Started())


async def _admits_twice(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted(), Admitted())


async def _goes_on_behind_its_end(stream: Stream, call: DecodeCall) -> None:
    await answer_rightly(stream, call, call.max_tokens)
    await stream.line(Tokens(tokens=[7]))


async def _says_too_much(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens)
    await stream.line(Tokens(tokens=[7]))


async def _swallows_tokens(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    await stream.line(done(stream, more=1))


async def _ends_too_soon(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens - 1)
    await stream.line(done(stream))


async def _breaks_off_behind_started(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Started())
    raise Broken


async def _is_silent_behind_started(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Started())
    await asyncio.Event().wait()


async def _admits_a_prefill_twice(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Admitted())


async def _no_head(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    raise AssertionError("done before there is a stream")


_BOTH: dict[str, Script] = {
    "no head": _no_head,
    "bounces": _bounces,
    "refuses": _refuses,
    "fails": _fails,
    "breaks at once": _breaks_at_once,
    "is silent": _is_silent,
    "babbles": _babbles,
    "nests": _nests,
    "never ends its line": _never_ends_its_line,
    "ends early": _ends_early,
}
DECODE_FAULTS: dict[str, Script] = {
    **_BOTH,
    "breaks off": _decode(_breaks_off),
    "breaks off before its end": _decode(_breaks_off_before_its_end),
    "loses kv": _decode(_loses_kv),
    "falls silent": _decode(_falls_silent),
    "says tokens first": _decode(_says_tokens_first),
    "says done first": _decode(_says_done_first),
    "says what a prefill says": _decode(_says_what_a_prefill_says),
    "admits twice": _decode(_admits_twice),
    "goes on behind its end": _decode(_goes_on_behind_its_end),
    "says too much": _decode(_says_too_much),
    "swallows tokens": _decode(_swallows_tokens),
    "ends too soon": _decode(_ends_too_soon),
}
PREFILL_FAULTS: dict[str, Script] = {
    **_BOTH,
    "breaks off behind started": _breaks_off_behind_started,
    "is silent behind started": _is_silent_behind_started,
    "admits twice": _admits_a_prefill_twice,
}
