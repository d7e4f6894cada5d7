"""Generators of synthetic traces: chats, agents with tools, documents asked many times, and bursts of interest.

Each is a frozen set of documented parameters with a method `requests(seconds, chance, numbers)`. Equal parameters and
seeds give equal traces. Defaults are round numbers in the range that public descriptions of such services give; none was
fitted to a trace. Combine them with `mooncask.conductor.traces.sessions.mix`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from mooncask.conductor.traces.prompt import Numbers, Prompt
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.sessions import Session, lognormal, make_request, overlap, shared_prompts, zipf

INPUT_TOKENS_MAX = 128_000
OUTPUT_TOKENS_MAX = 8_000
OUTPUT_TOKENS_PER_SECOND = 30.0
"""How fast an answer is read and written; the next turn cannot come before it is there."""


@dataclass(frozen=True, slots=True)
class Chats:
    """People talk to an assistant; each turn's prompt is all that was said before.

    A conversation goes on after turn k with probability `goes_on + k * goes_on_step`, at most `goes_on_max`, after the
    answer and a pause (lognormal). `assistants` different system prompts are used with Zipf popularity.
    """

    per_second: float = 1.0
    assistants: int = 10
    system_tokens: int = 700
    first_tokens: float = 3000.0
    first_sigma: float = 1.3
    message_tokens: float = 150.0
    message_sigma: float = 1.3
    output_tokens: float = 250.0
    output_sigma: float = 0.9
    pause_seconds: float = 60.0
    pause_sigma: float = 1.1
    goes_on: float = 0.35
    goes_on_step: float = 0.08
    goes_on_max: float = 0.75
    block_tokens: int = 512

    def requests(self, seconds: float, chance: Random, numbers: Numbers) -> Iterator[Request]:
        """A trace of that many seconds."""
        assistants = shared_prompts(numbers, self.block_tokens, self.assistants, self.system_tokens)

        def talk(now: float, chance: Random) -> Session:
            prompt = assistants[zipf(chance, self.assistants)].fork()
            prompt.append(_tokens(chance, self.first_tokens, self.first_sigma))
            conversation, turn = next(numbers.conversations), 0
            while prompt.tokens <= INPUT_TOKENS_MAX:
                output = _tokens(chance, self.output_tokens, self.output_sigma, OUTPUT_TOKENS_MAX)
                yield make_request(now, prompt, output, conversation, turn)
                if chance.random() >= min(self.goes_on_max, self.goes_on + turn * self.goes_on_step):
                    return
                turn += 1
                now += output / OUTPUT_TOKENS_PER_SECOND
                now += lognormal(chance, self.pause_seconds, self.pause_sigma, seconds)
                prompt.append(output + _tokens(chance, self.message_tokens, self.message_sigma))

        return overlap(self.per_second, seconds, chance, talk)


@dataclass(frozen=True, slots=True)
class Agents:
    """Programs that call tools: many short turns soon after each other, now and then a long wait for a person.

    Each of `kinds` of agent has a long prompt of instructions and tool descriptions; a task takes a geometric number of
    steps with mean `steps`.
    """

    per_second: float = 0.2
    kinds: int = 8
    system_tokens: int = 6000
    task_tokens: float = 800.0
    steps: float = 12.0
    result_tokens: float = 500.0
    result_sigma: float = 1.2
    output_tokens: float = 120.0
    tool_seconds: float = 3.0
    tool_sigma: float = 1.0
    asks_a_person: float = 0.05
    person_seconds: float = 240.0
    block_tokens: int = 512

    def requests(self, seconds: float, chance: Random, numbers: Numbers) -> Iterator[Request]:
        """A trace of that many seconds."""
        kinds = shared_prompts(numbers, self.block_tokens, self.kinds, self.system_tokens)

        def work(now: float, chance: Random) -> Session:
            prompt = kinds[zipf(chance, self.kinds)].fork()
            prompt.append(_tokens(chance, self.task_tokens, 1.0))
            conversation, turn = next(numbers.conversations), 0
            while prompt.tokens <= INPUT_TOKENS_MAX:
                output = _tokens(chance, self.output_tokens, 0.8, OUTPUT_TOKENS_MAX)
                yield make_request(now, prompt, output, conversation, turn)
                if chance.random() < 1.0 / self.steps:
                    return
                turn += 1
                wait = self.person_seconds if chance.random() < self.asks_a_person else self.tool_seconds
                now += output / OUTPUT_TOKENS_PER_SECOND + lognormal(chance, wait, self.tool_sigma, seconds)
                prompt.append(output + _tokens(chance, self.result_tokens, self.result_sigma))

        return overlap(self.per_second, seconds, chance, work)


@dataclass(frozen=True, slots=True)
class Documents:
    """A document is asked a geometric number of single questions with mean `questions`, at exponential gaps."""

    per_second: float = 0.1
    system_tokens: int = 300
    document_tokens: float = 12_000.0
    document_sigma: float = 0.9
    questions: float = 6.0
    gap_seconds: float = 90.0
    question_tokens: float = 60.0
    output_tokens: float = 250.0
    block_tokens: int = 512

    def requests(self, seconds: float, chance: Random, numbers: Numbers) -> Iterator[Request]:
        """A trace of that many seconds."""
        system = Prompt(numbers, self.block_tokens, self.system_tokens)

        def ask(now: float, chance: Random) -> Session:
            document = system.fork()
            document.append(_tokens(chance, self.document_tokens, self.document_sigma))
            while True:
                prompt = document.fork()
                prompt.append(_tokens(chance, self.question_tokens, 0.7))
                output = _tokens(chance, self.output_tokens, 0.8, OUTPUT_TOKENS_MAX)
                yield make_request(now, prompt, output, next(numbers.conversations), 0)
                if chance.random() < 1.0 / self.questions:
                    return
                now += chance.expovariate(1.0 / self.gap_seconds)

        return overlap(self.per_second, seconds, chance, ask)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Something happens and many people ask about the same article; interest decays with `half_life_seconds`.

    The number of askers is Pareto-distributed with the given least number and shape, at most `askers_max`.
    """

    per_second: float = 1 / 400
    system_tokens: int = 300
    article_tokens: float = 4000.0
    askers_least: float = 30.0
    askers_shape: float = 1.2
    askers_max: int = 2000
    half_life_seconds: float = 120.0
    question_tokens: float = 50.0
    output_tokens: float = 300.0
    block_tokens: int = 512

    def requests(self, seconds: float, chance: Random, numbers: Numbers) -> Iterator[Request]:
        """A trace of that many seconds."""
        system = Prompt(numbers, self.block_tokens, self.system_tokens)

        def burst(begin: float, chance: Random) -> Session:
            article = system.fork()
            article.append(_tokens(chance, self.article_tokens, 0.7))
            askers = min(self.askers_max, int(self.askers_least * chance.paretovariate(self.askers_shape)))
            decay = 0.6931 / self.half_life_seconds
            for now in sorted(begin + chance.expovariate(decay) for _ in range(askers)):
                prompt = article.fork()
                prompt.append(_tokens(chance, self.question_tokens, 0.7))
                output = _tokens(chance, self.output_tokens, 0.8, OUTPUT_TOKENS_MAX)
                yield make_request(now, prompt, output, next(numbers.conversations), 0)

        return overlap(self.per_second, seconds, chance, burst)


def _tokens(chance: Random, median: float, sigma: float, most: int = INPUT_TOKENS_MAX) -> int:
    return max(1, round(lognormal(chance, median, sigma, most)))
