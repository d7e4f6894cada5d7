"""The session's prompts as tokens."""

from dataclasses import dataclass

from mooncask.engine_adapter.transformers.chat import Chat
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.tools.demo.questions import ANSWER_TOKENS, FOLLOW_UP, QUESTIONS, messages


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    question: str
    tokens: list[int]
    end_of_turn: int

    def request(self, cache_salt: str = "", use_store: bool = True) -> Request:
        return Request(
            id=self.name,
            tokens=self.tokens,
            max_tokens=ANSWER_TOKENS,
            stop_tokens=[self.end_of_turn],
            cache_salt=cache_salt,
            use_store=use_store,
        )


def first_turns(chat: Chat) -> list[Prompt]:
    """One prompt a question, all about the same document."""
    return [
        Prompt(f"question {number}", question, chat.prompt(messages(question)), chat.end_of_turn)
        for number, question in enumerate(QUESTIONS, 1)
    ]


def second_turn(chat: Chat, before: Prompt, answer: list[int]) -> Prompt:
    """The conversation goes on: the prompt before, the answer as it was generated, and another question."""
    return Prompt("next turn", FOLLOW_UP, chat.next_turn(before.tokens, answer, FOLLOW_UP), chat.end_of_turn)
