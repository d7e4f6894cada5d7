"""How much a node tells a directory at a time."""

from mooncask.daemon.directory.pacing import KEYS_FIRST, KEYS_MAX, KEYS_MIN, QUICK_SECONDS, SLOW_SECONDS, Pace


def test_a_quick_server_is_told_ever_more_at_a_time_and_a_slow_one_ever_less() -> None:
    pace = Pace()
    for _ in range(20):
        pace.took(pace.keys, QUICK_SECONDS / 2)
    assert pace.keys == KEYS_MAX
    for _ in range(20):
        pace.took(pace.keys, SLOW_SECONDS * 2)
    assert pace.keys == KEYS_MIN


def test_what_is_neither_quick_nor_slow_and_a_batch_that_was_not_full_change_nothing() -> None:
    pace = Pace()
    pace.took(pace.keys, (QUICK_SECONDS + SLOW_SECONDS) / 2)
    pace.took(1, QUICK_SECONDS / 2)
    assert pace.keys == KEYS_FIRST


def test_after_a_failure_it_begins_anew() -> None:
    pace = Pace()
    for _ in range(20):
        pace.took(pace.keys, 0.0)
    pace.failed()
    assert pace.keys == KEYS_FIRST


def test_many_nodes_that_tell_all_at_once_come_to_an_end_of_it() -> None:
    """A thousand nodes with a server that takes 200,000 keys a second: a batch waits for those of all others."""
    paces = [Pace() for _ in range(1000)]
    for _ in range(10):
        waiting = sum(pace.keys for pace in paces)
        for pace in paces:
            pace.took(pace.keys, waiting / 200_000)
    assert sum(pace.keys for pace in paces) / 200_000 < 0.3
