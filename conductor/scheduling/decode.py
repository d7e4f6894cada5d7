"""Where a request decodes: the node with the least predicted TBT among those whose VRAM has room. Pure."""

from collections.abc import Sequence

from mooncask.conductor.models.cost import DecodeModel
from mooncask.conductor.scheduling.facts import DecodeChoice, DecodeFacts


def has_room(node: DecodeFacts, tokens: int) -> bool:
    return node.context_tokens + node.coming_tokens + tokens <= node.capacity_tokens


def predicted_tbt(node: DecodeFacts, tokens: int, model: DecodeModel) -> float:
    """The node's step in seconds once this request and those promised to it have joined."""
    batch = node.requests + node.coming_requests + 1
    return model.seconds(batch, node.context_tokens + node.coming_tokens + tokens)


def emptiest(nodes: Sequence[DecodeFacts]) -> int:
    """The node with the most room, promises counted."""
    return max(
        range(len(nodes)),
        key=lambda i: (nodes[i].capacity_tokens - nodes[i].context_tokens - nodes[i].coming_tokens, -i),
    )


def select_decode(
    tokens: int, expected_output: int, nodes: Sequence[DecodeFacts], model: DecodeModel
) -> DecodeChoice | None:
    """The best node for a context of `tokens` tokens that will grow by `expected_output`; None when none has room."""
    fitting = [i for i, node in enumerate(nodes) if has_room(node, tokens + expected_output)]
    if not fitting:
        return None
    tbt, node = min((predicted_tbt(nodes[i], tokens, model), i) for i in fitting)
    return DecodeChoice(node, tbt)
