"""The load: chats of several turns about documents that several of them share, with their times of arrival. Pure by its seed.

A chat's next turn follows its last answer after a pause; when chats begin is drawn beforehand (semi-open). The text is the
project's own documentation.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

DOCUMENT_CHARACTERS = 1400
"""About 400 tokens of SmolLM2: some six blocks of 64."""
PASSAGE_CHARACTERS = 360
QUESTIONS = (
    "What is this text about, in one sentence?",
    "Which words in it would a newcomer not know?",
    "Name one thing that it says must never happen.",
    "Which number in it matters most, and why?",
    "What would you do first after reading this?",
    "Who is this written for?",
    "Which part of it is the hardest to understand?",
    "Put its most important rule in your own words.",
)
FOLLOW_UPS = (
    "Say that again in one short sentence.",
    "Why is that so?",
    "Give an example of it.",
    "And what if that goes wrong?",
    "Which sentence of the text says so?",
)


@dataclass(frozen=True, slots=True)
class Chat:
    """`at`: seconds from the run's beginning; `pauses[i]`: between answer i and question i + 1."""

    name: str
    at: float
    document: str
    questions: tuple[str, ...]
    pauses: tuple[float, ...]

    def opening(self) -> list[dict[str, str]]:
        """The document comes first: what is shared must be a beginning."""
        return [{"role": "system", "content": "You answer questions about this text, briefly.\n\n" + self.document}]


@dataclass(frozen=True, slots=True)
class Shape:
    """How many chats of how many turns about how many documents, and the mean pause between two turns in seconds."""

    chats: int
    turns: int
    documents: int
    pause_seconds: float = 2.0

    @property
    def requests(self) -> int:
        return self.chats * self.turns


def make_chats(shape: Shape, requests_per_second: float, seed: int, texts: Sequence[str]) -> list[Chat]:
    """Chats arrive as a Poisson stream whose requests, turns included, come to `requests_per_second`."""
    source = random.Random(seed)
    pieces = source.sample(list(texts), min(shape.documents, len(texts)))
    chats, at = [], 0.0
    for number in range(shape.chats):
        follow_ups = source.sample(FOLLOW_UPS, shape.turns - 1)
        asked = (source.choice(QUESTIONS), *follow_ups)
        passages = source.sample(list(texts), shape.turns)
        questions = tuple(with_passage(*pair) for pair in zip(passages, asked, strict=True))
        pauses = tuple(source.expovariate(1 / shape.pause_seconds) for _ in follow_ups)
        # the first documents are asked about more often than the last: 1, 1/2, 1/3, ...
        document = source.choices(pieces, [1 / (rank + 1) for rank in range(len(pieces))])[0]
        chats.append(Chat(f"chat {number + 1}", at, document, questions, pauses))
        at += source.expovariate(requests_per_second / shape.turns)
    return chats


def with_passage(text: str, question: str) -> str:
    """A question that brings some 100 tokens of its own: more than decode computes without a prefill."""
    return f"There is also this passage:\n\n{text[:PASSAGE_CHARACTERS]}\n\n{question}"


def documents() -> list[str]:
    """Pieces of the documentation beside this package, or, where it was installed without it, of the demo's own document."""
    folder = Path(__file__).parents[3] / "docs"
    paths = sorted(folder.glob("*.md"))
    own = (files("mooncask.tools.demo") / "document.md").read_text(encoding="utf-8")
    return [piece for text in [own, *(path.read_text(encoding="utf-8") for path in paths)] for piece in cut(text)]


def cut(text: str, characters: int = DOCUMENT_CHARACTERS) -> list[str]:
    """Pieces of `characters`, each from the beginning of a paragraph; what is left over at the end is no piece."""
    pieces, piece = [], ""
    for paragraph in text.split("\n\n"):
        if "|" in paragraph or "    " in paragraph:  # tables and code are no prose to ask about
            continue
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        if len(piece) >= characters:
            pieces.append(piece[:characters])
            piece = ""
    return pieces
