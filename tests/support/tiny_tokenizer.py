"""A tokeniser of single bytes with a chat template, for the tiny model: its files as a model's folder has them."""

import json
from pathlib import Path

SPECIAL = ("<|end|>", "<|start|>", "<|stop|>")
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'refused' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|stop|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def write_tiny_tokenizer(folder: Path) -> Path:
    """259 tokens: the specials, then every byte. Returns the folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|stop|>", "bos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
