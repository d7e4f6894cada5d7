"""XML that a client sends: parsed into a small tree, without what XML can do to a parser. Pure.

No document types and so no entities; the caller bounds the bytes, this module nesting, number of elements and the length of a tag.
Namespaces are dropped: clients send S3's, others, or none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from mooncask.errors import MalformedXml

DEPTH_MAX = 8
ELEMENTS_MAX = 100_000
PIECE_BYTES = 16 << 10
"""Parsed at a time; other threads have their turn in between."""
TAG_PIECES_MAX = 4
"""A tag or comment that has not ended after so many is none of S3's: megabytes of attributes take expat seconds."""


@dataclass(slots=True)
class Element:
    """One element: its name without namespace, its own text, and what it holds."""

    name: str
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def all(self, name: str) -> Iterator["Element"]:
        return (child for child in self.children if child.name == name)

    def value(self, name: str, default: str = "") -> str:
        """The text of the first child of that name."""
        return next((child.text for child in self.all(name)), default)


def parse_xml(document: bytes, root: str) -> Element:
    """The document's element, which must be called `root`. Raises MalformedXml. A megabyte takes some ten milliseconds."""
    reading = _Reading()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reading.start, reading.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = reading.text, reading.doctype
    try:
        for start in range(0, len(document), PIECE_BYTES):
            parser.Parse(document[start : start + PIECE_BYTES], False)
            reading.check_progress()
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise MalformedXml(str(error)) from error
    top = reading.top
    if [child.name for child in top.children] != [root]:
        raise MalformedXml(f"the element {root} is wanted")
    return top.children[0]


class _Reading:
    """What expat tells of one document, made into elements."""

    def __init__(self) -> None:
        self.top = Element("")
        self._open = [self.top]
        self._texts: list[list[str]] = [[]]
        """Of each open element, joined at its end: text between many children would be copied with each of them."""
        self._count = 0
        self._silent = 0

    def start(self, name: str, _: dict[str, str]) -> None:
        self._silent = 0
        self._count += 1
        if len(self._open) > DEPTH_MAX or self._count > ELEMENTS_MAX:
            raise MalformedXml(f"more than {DEPTH_MAX} elements within each other, or {ELEMENTS_MAX} in all")
        element = Element(name.rpartition(" ")[2])
        self._open[-1].children.append(element)
        self._open.append(element)
        self._texts.append([])

    def end(self, _: str) -> None:
        self._silent = 0
        self._open.pop().text = "".join(self._texts.pop())

    def text(self, data: str) -> None:
        self._silent = 0
        self._texts[-1].append(data)

    def doctype(self, *_: object) -> None:
        raise MalformedXml("a document type")

    def check_progress(self) -> None:
        """Called after each piece. Raises MalformedXml when nothing has begun or ended for too long."""
        self._silent += 1
        if self._silent > TAG_PIECES_MAX:
            raise MalformedXml(f"a tag or comment of more than {TAG_PIECES_MAX * PIECE_BYTES} bytes")
