"""Price files: what is read, and that what is wrong is refused with key, value and what is allowed, in one line."""

from pathlib import Path

import pytest

from mooncask.conductor.planner.prices import load_prices, parse_prices
from mooncask.errors import BadArgument

GOOD = """
[dram]
dollars_per_gib_month = 2
[nvme]
dollars_per_gib_month = 0.1
[node]
dollars_per_hour = 10.0
gpu = "a800-80g"
"""


def test_a_mix_costs_its_memory_and_730_hours_of_each_node() -> None:
    assert parse_prices(GOOD, "p.toml").dollars_per_month(100, 1000, 2) == pytest.approx(200 + 100 + 14600)


def test_the_example_file_is_right() -> None:
    assert load_prices(Path(__file__).parents[3] / "docs" / "plans" / "prices.toml").node.gpus == 8


def test_decode_nodes_are_like_prefill_nodes_unless_the_file_says_otherwise() -> None:
    alike = parse_prices(GOOD, "p.toml").decode
    assert (alike.dollars_per_hour, alike.gpu, alike.gpus, alike.costs) == (10.0, "a800-80g", 8, "analytical")
    other = parse_prices(GOOD + '[decode]\ngpu = "h800-80g"\ngpus = 4\n', "p.toml").decode
    assert (other.dollars_per_hour, other.gpu, other.gpus) == (10.0, "h800-80g", 4)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("dollars_per_hour = 10.0", "dollars_per_hour = -1", "node.dollars_per_hour = -1: at least 0"),
        ("dollars_per_hour = 10.0", "dollars_per_hour = nan", "node.dollars_per_hour = nan: a number"),
        ("dollars_per_hour = 10.0", "dollars_per_hour = true", "node.dollars_per_hour = True: a number"),
        ("dollars_per_hour = 10.0", "", "node.dollars_per_hour = missing"),
        ("dollars_per_hour", "dollar_per_hour", "did you mean node.dollars_per_hour?"),
        ('"a800-80g"', '"a900"', "one of a100-80g"),
        ('"a800-80g"', "7", "node.gpu = 7: a name in quotes"),
        ('"a800-80g"', '"a800-80g"\nmfu = 0', "node.mfu = 0: above 0 and at most 1"),
        ('"a800-80g"', '"a800-80g"\ngpus = 1.5', "node.gpus = 1.5: a whole number, at least 1"),
        ('"a800-80g"', '"a800-80g"\nnodes_max = 0', "node.nodes_max = 0: a whole number, at least 1"),
        ("= 0.1", "= 0.1\ngigabytes_per_second = 0", "nvme.gigabytes_per_second = 0: above 0"),
        ("[nvme]", "[ssd]", "known: dram, nvme, node"),
        ("[nvme]\ndollars_per_gib_month = 0.1", "", "nvme = missing: a table [nvme]"),
        ("[dram]", "[decode]\ncosts = 'guessed'\n[dram]", "decode.costs = 'guessed': one of analytical, fitted"),
        ("[dram]", "[decode]\nefficiency = 2\n[dram]", "decode.efficiency = 2: above 0 and at most 1"),
        ("[dram]", "[decode]\ngpu = 'a900'\n[dram]", "one of a100-80g"),
        ("[dram]", "[dram", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(right: str, wrong: str, said: str) -> None:
    assert right in GOOD
    with pytest.raises(BadArgument) as refused:
        parse_prices(GOOD.replace(right, wrong, 1), "p.toml")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"absent\.toml"):
        load_prices(tmp_path / "absent.toml")
