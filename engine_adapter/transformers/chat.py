"""Chat messages to tokens and back, by the model's own template and tokeniser."""

from pathlib import Path

from transformers import AutoTokenizer


class Chat:
    """Loads the tokeniser of a model folder; needs no weights."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    @property
    def end_of_turn(self) -> int:
        """The token that ends an answer."""
        return int(self._tokenizer.eos_token_id)

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Tokens of the messages (`role`, `content`) up to where the assistant's answer begins."""
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def text(self, tokens: list[int]) -> str:
        """The answer as text, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def next_turn(self, prompt: list[int], answer: list[int], question: str) -> list[int]:
        """A conversation's next prompt, which begins with exactly the tokens that were there: those of `prompt` and
        `answer`. Text that is made of the answer and cut into tokens anew may not be."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        messages.append({"role": "user", "content": question})
        text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        after = self._tokenizer(text.partition(_ANSWER)[2], add_special_tokens=False)["input_ids"]
        spoken = answer[:-1] if answer[-1:] == [self.end_of_turn] else answer
        return [*prompt, *spoken, *(int(token) for token in after)]


_ANSWER = "(the answer)"
"""Stands for the answer in a rendered conversation, to see what the template puts after one."""
