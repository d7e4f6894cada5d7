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
