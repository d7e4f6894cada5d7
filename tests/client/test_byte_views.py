"""Payloads and buffers of any kind are seen as flat bytes, without a copy."""

import array

import numpy as np
import pytest

from mooncask.client.byte_views import flat_bytes
from mooncask.errors import BadRequest


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        array.array("H", [1, 2]),
        np.zeros((2, 2), np.uint8),
        np.float32(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_four_bytes_of_any_kind_are_four_bytes(buffer: object) -> None:
    flat = flat_bytes(buffer)
    assert flat.dtype == np.uint8 and flat.shape == (4,)


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros((0, 3))], ids=lambda value: type(value).__name__)
def test_no_bytes_are_no_bytes(buffer: object) -> None:
    assert flat_bytes(buffer).shape == (0,)


def test_writing_into_the_view_writes_into_the_buffer() -> None:
    buffer = np.zeros((2, 2), np.float32)
    flat_bytes(buffer, writable=True)[:] = 255
    assert np.isnan(buffer).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_a_tensor_of_any_dtype_is_bytes(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones((2, 3), dtype=getattr(torch, dtype))
    flat = flat_bytes(tensor, writable=True)
    assert flat.nbytes == 6 * tensor.element_size()
    flat[:] = 0
    assert not tensor.any()


def test_what_is_not_contiguous_is_refused() -> None:
    with pytest.raises(BadRequest, match="contiguous"):
        flat_bytes(np.zeros((4, 4))[:, ::2])
    with pytest.raises(BadRequest, match="contiguous"):
        flat_bytes(memoryview(b"abcd")[::2])
    torch = pytest.importorskip("torch")
    with pytest.raises(BadRequest, match="contiguous"):
        flat_bytes(torch.zeros(4, 4).T)


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(BadRequest, match="str"):
        flat_bytes("text")


def test_what_cannot_be_written_is_refused_as_a_buffer_to_write_into() -> None:
    with pytest.raises(BadRequest, match="read-only"):
        flat_bytes(b"abcd", writable=True)
