"""`mooncask hash`: the published vectors, prompts in every form, and what a wrong one says. Needs no daemon."""

import importlib.util
import json
from pathlib import Path

import pytest
from command_line import CommandLine

HASHING_DOCUMENT = Path(__file__).parents[2] / "docs/HASHING.md"
LLAMA = ("--family", "model=llama", "--family", "dtype=bfloat16", "--family", "block_tokens=4")
KEYS = ["86e8a133aab0704c067ce4e41f21d1a2", "34e91f25a01df19597c93f80ed8bee2c"]
"""Of tokens 1 to 9 in that family, as docs/HASHING.md publishes them."""


@pytest.fixture
def command() -> CommandLine:
    return CommandLine("/nowhere")


def test_the_published_vectors_come_out_as_published(command: CommandLine) -> None:
    assert "all as published" in command.run("hash", "--vectors", str(HASHING_DOCUMENT))


def test_a_changed_vector_is_named_by_its_number_and_field(command: CommandLine, tmp_path: Path) -> None:
    changed = tmp_path / "vectors.md"
    changed.write_text(HASHING_DOCUMENT.read_text().replace(KEYS[1], "00" * 16))
    said = command.error("hash", "--vectors", str(changed), expect=65)
    assert "vector 1: keys" in said


def test_the_keys_of_token_ids(command: CommandLine) -> None:
    found = command.json("hash", "--tokens", "1,2,3,4,5,6,7,8,9", *LLAMA, "--shard", "tp 0/2")
    assert (found["keys"], found["tail_tokens"], found["namespace"]) == (KEYS, 1, "kv-bdcbf1a68bf397cd")
    assert KEYS[1] in command.run("hash", "--tokens", "1 2 3 4 5 6 7 8 9", *LLAMA)


@pytest.mark.parametrize("text", ["[1, 2, 3, 4, 5, 6, 7, 8]", "1 2 3 4\n5,6,7,8\n"])
def test_token_ids_come_from_a_file(command: CommandLine, tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text)
    assert command.json("hash", "--tokens", str(tmp_path / "ids"), *LLAMA)["keys"] == KEYS


def test_a_salt_gives_other_keys(command: CommandLine) -> None:
    words = ("hash", "--tokens", "1,2,3,4", *LLAMA)
    plain = command.json(*words)["keys"]
    assert command.json(*words, "--cache-salt", "user 7")["keys"] != plain
    assert (
        command.json(*words, "--salt", b"user 7".hex())["keys"]
        == command.json(*words, "--cache-salt", "user 7")["keys"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "1,2"], "the family has no block_tokens"),
        (["--tokens", "", *LLAMA], "no token ids"),
        (["--tokens", "4294967296,1,1,1", *LLAMA], "outside [0, 2^32)"),
        (["--text", "hello", *LLAMA], "needs --tokenizer"),
        (["--text", "a", "--tokens", "1", *LLAMA], "given in one way"),
        (["--family", "nonsense", "--tokens", "1"], "NAME=VALUE"),
        (["--salt", "zz", "--tokens", "1", *LLAMA], "hex is wanted"),
        ([*LLAMA], "give the prompt"),
    ],
)
def test_a_wrong_prompt_is_refused_in_one_line(command: CommandLine, words: list[str], said: str) -> None:
    assert said in command.error("hash", *words, expect=64)


@pytest.mark.parametrize("tokens", ["1,2,x", "1,2," * 100 + "x", "missing.json"])
def test_what_is_neither_ids_nor_a_file_is_called_so(command: CommandLine, tokens: str) -> None:
    said = command.error("hash", "--tokens", tokens, *LLAMA, expect=2)
    assert tokens[:20] in said and "neither token ids" in said


def test_a_file_that_holds_no_ids_is_named(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("one two")
    assert str(tmp_path / "ids") in command.error("hash", "--tokens", str(tmp_path / "ids"), *LLAMA, expect=64)


def test_text_is_encoded_with_the_tokenizer_that_is_named(command: CommandLine, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    model = tokenizers.models.WordLevel({"a": 1, "b": 2, "c": 3, "d": 4}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        found = command.json("hash", "--text", "a b c d", "--tokenizer", str(place), *LLAMA)
        assert found["keys"] == KEYS[:1]
    (tmp_path / "prompt").write_text("a b c d")
    words = ["hash", "--file", str(tmp_path / "prompt"), "--tokenizer", str(tmp_path), *LLAMA]
    assert command.json(*words)["keys"] == KEYS[:1]


def test_a_tokenizer_that_is_none_is_named(command: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"not": "one"}))
    for place in (tmp_path / "tokenizer.json", tmp_path / "absent"):
        assert str(place) in command.error("hash", "--text", "a", "--tokenizer", str(place), *LLAMA, expect=2)


@pytest.mark.slow
def test_a_folder_without_a_tokenizer_json_is_read_by_transformers(command: CommandLine, tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("the package transformers is not installed")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    words = ("hash", "--text", "a b a b", "--tokenizer", str(tmp_path), "--no-special-tokens", "--json", *LLAMA)
    found = json.loads(command.spawn(*words).stdout)
    assert found["keys"] == command.json("hash", "--tokens", "5,6,5,6", *LLAMA)["keys"]
