"""What waits to be told to a directory: bounded, the last word on a block counts, and no namespace waits for all of another."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.directory.announcer import Announcements

KEYS = [b"%d" % number for number in range(12)]
NEWS = st.tuples(
    st.sampled_from([b"a", b"b", b"c"]), st.lists(st.sampled_from(KEYS), max_size=8, unique=True), st.booleans()
)


def test_a_namespace_of_which_much_waits_does_not_keep_another_waiting() -> None:
    news = Announcements()
    news.note(b"long", KEYS, here=True)
    news.note(b"short", KEYS[:2], here=True)
    news.note(b"short", KEYS[2:3], here=False)
    assert news.take(4) == [(b"long", True, KEYS[:4])]
    assert news.take(4) == [(b"short", True, KEYS[:2]), (b"short", False, KEYS[2:3]), (b"long", True, KEYS[4:5])]
    assert len(news) == 7 and news.among(b"long", KEYS) == set(KEYS[5:]) and not news.among(b"short", KEYS)


@given(st.lists(st.one_of(NEWS, st.integers(1, 10)), max_size=30))
def test_what_was_noted_and_found_room_is_taken_once_with_the_last_word_on_it(steps: list[object]) -> None:
    """Against a dict, which is full at ten."""
    news, model, dropped = Announcements(most=10), dict[tuple[bytes, bytes], bool](), 0
    for step in steps:
        if isinstance(step, int):
            taken = news.take(step)
            assert all(batch.keys for batch in taken)
            names = [((batch.ns_id, key), batch.here) for batch in taken for key in batch.keys]
            assert len(names) == min(step, len(model)) and max(Counter(names).values(), default=1) == 1
            assert all(model.pop(name) is here for name, here in names)
        else:
            ns_id, keys, here = step  # type: ignore[misc]
            for key in keys:
                if (ns_id, key) in model or len(model) < 10:
                    model[ns_id, key] = here
                else:
                    dropped += 1
            news.note(ns_id, keys, here=here)
        assert len(news) == len(model) and news.dropped == dropped
        assert {key for ns_id, key in model if ns_id == b"a"} == news.among(b"a", KEYS)
    news.clear()
    assert not len(news) and not news.take(100)
