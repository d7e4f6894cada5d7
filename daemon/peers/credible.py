"""What another node says of a block may be anything: what of it could be a block of this store at all. Pure.

Local writers are held to the same bounds where their requests are read. Bytes are compared with their checksum later, elsewhere.
"""

from mooncask.daemon.transport.messages import KEY_BYTES_MAX
from mooncask.daemon.transport.transport import RemoteBlock

CHECKSUM_BYTES = 16
_U32 = 1 << 32


def could_be(block: RemoteBlock, key: bytes, bytes_max: int) -> bool:
    """Whether `block` is one that can be stored under `key`. Of one that is being written the checksum is not known yet."""
    return (
        block.key == key
        and 0 < block.size <= bytes_max
        and len(block.checksum) in (0, CHECKSUM_BYTES)
        and len(block.parent) <= KEY_BYTES_MAX
        and block.parent != key
        and 0 <= block.depth < _U32
        and 0 <= block.tokens < _U32
    )
