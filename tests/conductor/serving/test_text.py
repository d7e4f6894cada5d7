"""Text to tokens and back: what is reused gives the tokens that cutting all of it anew would give."""

from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install mooncask[conductor]")

from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import write_tiny_tokenizer

from mooncask.conductor.serving.text.model_text import ModelText
from mooncask.conductor.serving.text.stopping import Detokenizer, StopStrings
from mooncask.errors import BadRequest, ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(contents)]


def test_a_new_turn_costs_only_its_new_text_and_gives_the_same_tokens(folder: Path) -> None:
    text = ModelText(folder)
    first = text.prompt(chat("x" * 500), None)
    assert first.reused == 0
    longer = text.prompt(chat("x" * 500, "an answer", "and more"), None)
    assert longer.reused > 500
    assert longer.tokens == ModelText(folder).prompt(chat("x" * 500, "an answer", "and more"), None).tokens


def test_an_answer_s_own_tokens_begin_the_next_turn(folder: Path) -> None:
    text = ModelText(folder)
    prompt = text.prompt(chat("y" * 300), None)
    odd = [*prompt.tokens, 200, 201, 2]  # no tokeniser would cut the answer like this
    text.remember(prompt.text + "abc<|stop|>", odd)
    assert text.prompt(chat("y" * 300, "abc", "next"), None).tokens[: len(odd)] == odd


def test_a_template_that_refuses_messages_and_a_folder_without_tokeniser_are_named(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="no such role"):
        ModelText(folder).prompt([{"role": "refused", "content": "x"}], None)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ModelText(tmp_path)


def test_the_end_of_an_answer_is_known_from_the_tokeniser_s_files(folder: Path) -> None:
    assert ModelText(folder).stop_tokens == [2]


@given(st.text(min_size=1, max_size=60))
def test_detokenising_token_by_token_gives_the_text_back(folder: Path, words: str) -> None:
    text = ModelText(folder)
    if "<|" in words:
        return
    stream = Detokenizer(text.tokenizer)
    told = "".join(stream.step(token) for token in text.tokens(words).tokens)
    assert told == words


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_first_stop_string_that_is_whole_ends_the_text_before_it(words: str, stops: list[str]) -> None:
    cut, told = StopStrings(stops), ""
    for letter in words:
        told += cut.step(letter)
    told += cut.rest()
    whole = min((words.find(stop) + len(stop) for stop in stops if stop in words), default=None)
    if whole is None:
        assert (told, cut.stopped) == (words, False)
    else:
        begins = min(words[:whole].find(stop) for stop in stops if words[:whole].endswith(stop))
        assert (told, cut.stopped) == (words[:begins], True)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_no_stop_string_is_ever_passed_on(words: str, stops: list[str]) -> None:
    cut = StopStrings(stops)
    told = "".join(cut.step(words[at : at + 3]) for at in range(0, len(words), 3)) + cut.rest()
    assert not any(stop in told for stop in stops)
    assert words.startswith(told)
