"""What is asked in the demo: questions about one document, and a second turn of the last one's conversation."""

from importlib.resources import files

QUESTIONS = (
    "What are the two phases of answering a question?",
    "What is limited by memory bandwidth, and why?",
    "Why can a paragraph in the middle of a prompt not be reused?",
    "How does a worker find the longest known beginning?",
    "Which tiers does a store have?",
    "Why is a wrong block worse than a missing one?",
)
FOLLOW_UP = "Say that again in one short sentence."
ANSWER_TOKENS = 32


def document() -> str:
    """The text that all questions share, about 1,500 tokens long."""
    return (files("mooncask.tools.demo") / "document.md").read_text(encoding="utf-8")


def messages(question: str) -> list[dict[str, str]]:
    """The document comes first and the question last: what is shared must be a beginning."""
    system = "You answer questions about this document, briefly.\n\n" + document()
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]
