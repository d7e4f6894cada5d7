"""Calls of a Conductor that is not heard of any more are ended; nobody else's are."""

from mooncask.engine_adapter.transformers.server.callers import Callers


def test_calls_end_when_their_conductor_has_been_silent_for_so_long_and_no_earlier() -> None:
    callers, ended = Callers(2.0), list[str]()
    with callers.call("a", lambda: ended.append("one")), callers.call("a", lambda: ended.append("two")):
        callers.tick(1.9)
        assert ended == []
        callers.tick(0.2)
        assert ended == ["one", "two"]
        callers.tick(9.0)
        assert ended == ["one", "two"]


def test_who_answers_a_report_or_calls_again_is_there() -> None:
    callers, ended = Callers(2.0), list[str]()
    with callers.call("a", lambda: ended.append("a")):
        callers.tick(1.5)
        callers.heard("a")
        callers.tick(1.5)
        with callers.call("a", lambda: ended.append("later")):
            callers.tick(1.5)
        assert ended == []


def test_silence_is_each_conductor_s_own_and_nobody_s_calls_are_left_alone() -> None:
    callers, ended = Callers(2.0), list[str]()
    with (
        callers.call("a", lambda: ended.append("a")),
        callers.call("b", lambda: ended.append("b")),
        callers.call("", lambda: ended.append("nobody")),
    ):
        callers.heard("c")
        callers.tick(1.5)
        callers.heard("b")
        callers.tick(1.0)
    assert ended == ["a"]


def test_a_conductor_that_comes_back_is_counted_anew_and_one_without_calls_is_forgotten() -> None:
    callers, ended = Callers(2.0), list[str]()
    with callers.call("a", lambda: ended.append("first")):
        callers.tick(3.0)
        callers.heard("a")
        with callers.call("a", lambda: ended.append("second")):
            callers.tick(1.0)
    assert ended == ["first"]
    assert not callers._callers
    with callers.call("a", lambda: ended.append("third")):
        callers.tick(1.5)
    assert ended == ["first"]
