"""The bytes of a file being written, in memory or in a temporary file, are those of a plain file."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mooncask.fuse_mount import spool as spools
from mooncask.fuse_mount.spool import Memory, Spool

SMALL = 64
offsets = st.integers(0, 200)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), offsets, st.binary(max_size=80)),
        st.tuples(st.just("truncate"), offsets),
        st.tuples(st.just("read"), offsets, offsets),
    ),
    max_size=20,
)


@given(steps, st.sampled_from([0, 40, 1000]))
@example([("write", 0, b"x" * 80), ("truncate", 40)], 1000)
@example([("write", 0, b"x" * 40), ("truncate", 80), ("write", 40, b"y" * 40)], 0)
@settings(deadline=None)
def test_a_spool_is_as_a_file(steps: list[tuple[object, ...]], budget: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spools, "MEMORY_BYTES", SMALL)
        memory = Memory(budget)
        spool, model, written = Spool("", memory), io.BytesIO(), set[int]()
        try:
            for step in steps:
                match step:
                    case ("write", int(offset), bytes(data)):
                        spool.write(offset, data)
                        if data:
                            size = len(model.getvalue())
                            model.seek(min(size, offset))
                            model.write(bytes(max(0, offset - size)))
                            model.seek(offset)
                            model.write(data)
                            written |= set(range(offset, offset + len(data)))
                        elif offset > len(model.getvalue()):
                            _extend(model, offset)
                    case ("truncate", int(size)):
                        spool.truncate(size)
                        _extend(model, size)
                        model.truncate(size)
                        written = {place for place in written if place < size}
                    case ("read", int(offset), int(size)):
                        assert spool.read(offset, size) == model.getvalue()[offset : offset + size]
                expected = model.getvalue()
                assert spool.size == len(expected)
                assert spool.whole == (written == set(range(len(expected))))
                if expected:
                    assert bytes(spool.payload()) == expected
        finally:
            spool.close()
        assert memory.take(budget)


def _extend(model: io.BytesIO, size: int) -> None:
    have = len(model.getvalue())
    model.seek(have)
    model.write(bytes(max(0, size - have)))


def test_what_is_long_lies_in_a_file_without_a_name_that_goes_with_the_spool(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), Memory(1 << 30))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # numbers are what is counted
    spool.write(0, bytes(spools.MEMORY_BYTES + 1))
    assert spool.memory_bytes == 0 and list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208  # as above
    spool.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # as above
