"""How keys of objects and paths below `blocks/` name each other: one pure function and its inverse. No I/O.

A key's segments (what stands between slashes) are folders, the last one is the file:

    models/llama/tokenizer.json    models/llama/tokenizer.json

What is no name of a file, or stands beside a folder of that name, is escaped with `%`, always in the same way:

    what the key holds                         name in the folder
    `%`, and a zero byte                       `%25`, `%00`
    a segment `.` or `..`                      `%2E`, `%2E%2E`
    an empty segment, as in `a//b` or `/a`     `%-`
    `a`, where `a/b` is too                    `a%=` (the folder is `a`)
    a segment of over 255 bytes                pieces of at most 250 bytes, all but the last followed by `%+`, each
                                               but the last a folder

So one key has one path, or two that say whether it stands beside a folder. A name with a `%` that means none of these is
taken as it is typed: `cp x '50%'` stores the key `50%`, which is listed as `50%25`.
"""

import re

NAME_BYTES_MAX = 255
PIECE_BYTES = 250
EMPTY = b"%-"
BESIDE = b"%="
"""Ends the name of a block that stands beside a folder."""
CONTINUES = b"%+"
"""Ends the name of a folder whose segment goes on in the next name, with no slash between them."""

_ESCAPE = re.compile(rb"%(25|00|2E)")


def path_of_key(key: bytes, beside_folder: bool = False) -> bytes:
    """The path below `blocks/` of the block with this key. `beside_folder`: keys that start with `key` + `/` are here too."""
    names = [name for segment in key.split(b"/") for name in names_of_segment(segment)]
    return b"/".join(names) + (BESIDE if beside_folder else b"")


def key_of_path(path: bytes) -> bytes:
    """The key that a path below `blocks/` means. The inverse: key_of_path(path_of_key(key, x)) == key."""
    *folders, last = path.split(b"/")
    return key_prefix(folders) + key_of_name(last)


def key_prefix(folders: list[bytes]) -> bytes:
    """What all keys in the folder with these names start with; empty for `blocks/` itself."""
    found = b""
    for name in folders:
        if name.endswith(CONTINUES) and is_piece(name):
            found += _unescaped(name.removesuffix(CONTINUES))
        else:
            found += _segment(name) + b"/"
    return found


def key_of_name(name: bytes) -> bytes:
    """The last segment of the key that a file's name means."""
    return _segment(name.removesuffix(BESIDE)) if says_beside(name) else _segment(name)


def says_beside(name: bytes) -> bool:
    """Whether a file's name says that it stands beside a folder."""
    return name.endswith(BESIDE) and is_segment_name(name.removesuffix(BESIDE))


def names_of_segment(segment: bytes) -> list[bytes]:
    """The names of one segment of a key: one, or several for a long one."""
    if segment == b"":
        return [EMPTY]
    if segment in (b".", b".."):
        return [segment.replace(b".", b"%2E")]
    escaped = segment.replace(b"%", b"%25").replace(b"\0", b"%00")
    if len(escaped) + len(BESIDE) <= NAME_BYTES_MAX:
        return [escaped]
    *pieces, last = _pieces(escaped)
    return [piece + CONTINUES for piece in pieces] + [last]


def is_segment_name(name: bytes) -> bool:
    """Whether `name` is how exactly one segment is written."""
    return names_of_segment(_meant(name)) == [name]


def is_piece(name: bytes) -> bool:
    """Whether `name` is how the beginning of a long segment is written."""
    piece = name.removesuffix(CONTINUES)
    long_enough = PIECE_BYTES - 2 <= len(piece) <= PIECE_BYTES
    return long_enough and _unescaped(piece).replace(b"%", b"%25").replace(b"\0", b"%00") == piece


def _segment(name: bytes) -> bytes:
    return _meant(name) if is_segment_name(name) else name


def _meant(name: bytes) -> bytes:
    return b"" if name == EMPTY else _unescaped(name)


def _unescaped(name: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), name)


def _pieces(escaped: bytes) -> list[bytes]:
    """Cut where no escape is cut in two. The last is short enough for a mark behind it."""
    found, start = [], 0
    while len(escaped) - start > PIECE_BYTES:
        stop = start + PIECE_BYTES
        cut = escaped.rfind(b"%", stop - 2, stop)
        stop = cut if cut >= 0 else stop
        found.append(escaped[start:stop])
        start = stop
    return [*found, escaped[start:]]
