"""POST /-/v1/where: which nodes have which blocks of a KV namespace, and in which tiers. It takes a `control.WhyRequest`."""

from mooncask.client.control import Answer


class Holding(Answer, frozen=True):
    """One node's copies of one block."""

    node: str
    tiers: list[str]
    """Fastest first."""


class WhereBlock(Answer, frozen=True):
    """`holders`: this node first, then the others by name."""

    key: str
    holders: list[Holding]


class Where(Answer, frozen=True):
    """`node` is the one that was asked; `silent` are nodes that did not answer in time: what they have is not in it."""

    namespace: str
    node: str
    blocks: list[WhereBlock]
    silent: list[str]
