"""The pages of chains: the prefix tree as it is walked by people and file systems, and which prefix of a prompt is here."""

import asyncio
import random

import numpy as np
import pytest
from child_processes import until
from control_pages import PagesOf, open_kv, running_pages
from raw_client import key

from mooncask.client import hashing, wire
from mooncask.client.control_client import ControlClient
from mooncask.client.family import Family
from mooncask.daemon.insight import chains as chains_module
from mooncask.daemon.insight.tree import PrefixTree
from mooncask.daemon.namespace_door import tenant_salt
from mooncask.errors import BadRequest, NoSuchBlock
from mooncask.tiers.catalogue import NO_PARENT


def texts(*numbers: int) -> list[str]:
    return [key(number).hex() for number in numbers]


async def forked(pages: PagesOf) -> int:
    """1-2-3-4 and 1-2-5, and 9 by itself."""
    namespace = await open_kv(pages.client, "kv-a")
    await pages.put_chain(namespace, [key(1), key(2), key(3), key(4)])
    await pages.put_chain(namespace, [key(5)], parent=key(2), first=2)
    await pages.put_chain(namespace, [key(9)])
    return namespace


async def shows(pages: PagesOf, keys: list[str], parent: bytes = b"") -> None:
    """A tree is used for a few times as long as it took to build before it is built anew."""
    async with asyncio.timeout(5):
        while True:
            found = await pages.ask(ControlClient.children, "kv-a", parent)
            if [node.key for node in found.nodes] == keys:
                return


async def test_chains_are_walked_from_their_beginnings_to_their_tips() -> None:
    async with running_pages() as pages:
        await forked(pages)
        begin = await pages.ask(ControlClient.children, "kv-a")
        assert [(node.key, node.children, node.blocks_below) for node in begin.nodes] == [
            (key(1).hex(), 1, 5),
            (key(9).hex(), 0, 1),
        ]
        fork = await pages.ask(ControlClient.children, "kv-a", key(2))
        assert [(node.key, node.parent, node.depth) for node in fork.nodes] == [
            (key(3).hex(), key(2).hex(), 2),
            (key(5).hex(), key(2).hex(), 2),
        ]
        path = await pages.ask(ControlClient.path, "kv-a", key(4))
        assert [node.key for node in path.nodes] == texts(1, 2, 3, 4)
        assert [node.blocks_below for node in path.nodes] == [5, 4, 2, 1]
        tips = await pages.ask(ControlClient.tips, "kv-a")
        assert [node.key for node in tips.nodes] == texts(4, 5, 9) and not tips.more


async def test_what_was_just_put_or_taken_out_shows() -> None:
    async with running_pages() as pages:
        namespace = await forked(pages)
        assert (await pages.ask(ControlClient.children, "kv-a", key(9))).nodes == []
        await pages.put_chain(namespace, [key(10)], parent=key(9), first=1)

        await shows(pages, texts(10), key(9))
        await pages.ask(ControlClient.evict, "kv-a", key(2))
        await shows(pages, texts(1, 3, 5, 9))
        path = await pages.ask(ControlClient.path, "kv-a", key(4))
        assert [node.key for node in path.nodes] == texts(3, 4), "the chain begins where its blocks are"
        assert path.nodes[0].parent == key(2).hex()


async def test_pages_of_many_come_in_key_order_without_gaps() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(0)])
        for number in random.Random(1).sample(range(1, 60), 59):
            await pages.put_chain(namespace, [key(number)], parent=key(0), first=1)
        found: list[str] = []
        while True:
            page = await pages.ask(ControlClient.children, "kv-a", key(0), after=found[-1] if found else "", limit=7)
            found += [node.key for node in page.nodes]
            if not page.more:
                break
            assert len(page.nodes) == 7
        assert found == texts(*range(1, 60))


async def test_what_is_not_here_has_no_chain() -> None:
    async with running_pages() as pages:
        await forked(pages)
        for call in (ControlClient.path, ControlClient.children):
            with pytest.raises(NoSuchBlock):
                await pages.ask(call, "kv-a", key(77))
            with pytest.raises(NoSuchBlock):
                await pages.ask(call, "kv-a", "not hex")


async def test_an_objects_namespace_has_chains_of_one() -> None:
    async with running_pages() as pages:
        handle = await pages.client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        await pages.client.put(handle, {b"a/b": b"x", b"c": b"y"})
        assert [node.key for node in (await pages.ask(ControlClient.children, "photos")).nodes] == ["a/b", "c"]
        assert [node.key for node in (await pages.ask(ControlClient.path, "photos", "a/b")).nodes] == ["a/b"]


async def test_a_ring_of_parents_ends_a_walk_and_not_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        for child, parent in ((1, 2), (2, 3), (3, 1)):
            await pages.put_chain(namespace, [key(child)], parent=key(parent))
        path = await pages.ask(ControlClient.path, "kv-a", key(1))
        assert len(path.nodes) == 3
        assert (await pages.ask(ControlClient.tips, "kv-a")).nodes == []
        monkeypatch.setattr(chains_module, "PATH_MAX", 2)
        assert len((await pages.ask(ControlClient.path, "kv-a", key(1))).nodes) == 2


async def test_a_prompt_is_matched_by_its_tokens() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        spec = pages.daemon.store.namespace("kv-a")
        assert spec is not None
        root = hashing.root(Family(spec.spec.family).fingerprint(), tenant_salt("default"))
        tokens = list(range(16 * 4 + 5))
        keys = hashing.chain(root, tokens, 16)
        await pages.put_chain(namespace, keys[:3])
        found = await pages.ask(ControlClient.match, "kv-a", tokens=tokens)
        assert (found.blocks, found.hit_blocks, found.hit_tokens) == (4, 3, 48)
        assert found.tiers == ["dram"] * 3 and len(found.seconds) == 3
        by_keys = await pages.ask(ControlClient.match, "kv-a", keys=keys)
        assert by_keys.hit_blocks == 3
        salted = await pages.ask(ControlClient.match, "kv-a", tokens=tokens, cache_salt="user 7")
        assert salted.hit_blocks == 0
        for wrong in ({"tokens": tokens, "keys": keys}, {}, {"tokens": [-1] * 16}):
            with pytest.raises(BadRequest):
                await pages.ask(lambda control, asked=wrong: control.match("kv-a", **asked))  # type: ignore[misc,arg-type]
        await until(lambda: pages.daemon.service.tokens[("kv-a", "hit")] == 3 * 48 - 48)


# --- the tree by itself --------------------------------------------------------------------------------------------------


def tree_of(slots: list[int], parents: list[int]) -> PrefixTree:
    sequences = list(range(1, len(slots) + 1))
    return PrefixTree(np.array(slots, np.int64), np.array(parents, np.int64), np.array(sequences, np.int64))


def naive_below(parents: dict[int, int], slot: int) -> int:
    return 1 + sum(naive_below(parents, child) for child, parent in parents.items() if parent == slot)


@pytest.mark.parametrize("seed", range(5))
def test_subtrees_are_counted_as_a_walk_counts_them(seed: int) -> None:
    chance = random.Random(seed)
    slots = sorted(chance.sample(range(1000), 120))
    parents: dict[int, int] = {}
    for i, slot in enumerate(slots):
        parents[slot] = chance.choice([NO_PARENT, *slots[:i]]) if i else NO_PARENT
    tree = tree_of(slots, [parents[slot] for slot in slots])
    for slot, counts in zip(slots, tree.counts(slots), strict=True):
        assert counts.below == naive_below(parents, slot)
        assert tree.continuing(slot).slots.tolist() == [child for child in slots if parents[child] == slot]
        assert counts.children == len(tree.continuing(slot).slots)
    assert tree.beginnings().slots.tolist() == [slot for slot in slots if parents[slot] == NO_PARENT]
    tips = [slot for slot in slots if slot not in parents.values()]
    assert tree.tips().slots.tolist() == tips
    assert tree.tips().sequences.tolist() == [slots.index(slot) + 1 for slot in tips]


def test_an_empty_tree_and_a_slot_that_is_none_of_its_own_are_answered() -> None:
    tree = tree_of([], [])
    for members in (tree.tips(), tree.beginnings(), tree.continuing(3)):
        assert len(members.slots) == len(members.sequences) == 0
    assert tree.counts([3]) == [(0, 1)]
