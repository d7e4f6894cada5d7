"""XML that a client sends: parsed into a small tree, without what XML can do to a parser. Pure.

No document types and so no entities; the caller bounds the bytes, this module nesting and number of elements. Namespaces are dropped: clients
send S3's, others, or none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from mooncask.errors import MalformedXml

DEPTH_MAX = 8
ELEMENTS_MAX = 100_000


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
    top = Element("")
    open_elements = [top]
    count = 0

    def start(name: str, _: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > DEPTH_MAX or count > ELEMENTS_MAX:
            raise MalformedXml(f"more than {DEPTH_MAX} elements within each other, or {ELEMENTS_MAX} in all")
        element = Element(name.rpartition(" ")[2])
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_: str) -> None:
        open_elements.pop()

    def text(data: str) -> None:
        open_elements[-1].text += data

    def doctype(*_: object) -> None:
        raise MalformedXml("a document type")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise MalformedXml(str(error)) from error
    if [child.name for child in top.children] != [root]:
        raise MalformedXml(f"the element {root} is wanted")
    return top.children[0]
