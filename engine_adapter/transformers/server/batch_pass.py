"""One decode step of several answers in one forward pass."""

from collections.abc import Sequence

import numpy as np
import torch

from mooncask.engine_adapter.transformers.engine import ignore_layer
from mooncask.engine_adapter.transformers.kv_layout import cache_over
from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.sampling import Logits
from mooncask.engine_adapter.transformers.server.answer import Answer
from mooncask.engine_adapter.transformers.server.kv_slots import KvSlots, Rows, rows_cache


def next_logits(model: Model, slots: KvSlots, answers: Sequence[Answer]) -> list[Logits]:
    """Feeds each answer's newest token at its own position: the logits of the one after it, [vocabulary] an answer."""
    if len(answers) == 1 or model.layout.windows:  # a batch has one mask, and sliding layers want one of their own
        return [_alone(model, answer) for answer in answers]
    return list(_batched(model, slots, answers))


def _alone(model: Model, answer: Answer) -> Logits:
    logits = model.forward([answer.tokens[-1]], cache_over(answer.buffer, answer.length, ignore_layer))
    found: Logits = logits.cpu().numpy()
    return found


@torch.inference_mode()
def _batched(model: Model, slots: KvSlots, answers: Sequence[Answer]) -> Logits:
    device = str(slots.storage.device)
    rows = Rows([answer.slot for answer in answers], [answer.length for answer in answers], device)
    ids = torch.zeros(rows.count, dtype=torch.long, device=device)
    ids[rows.active] = torch.tensor([answer.tokens[-1] for answer in answers], device=device)
    out = model.module(
        input_ids=ids[:, None],
        position_ids=rows.positions[:, None],
        attention_mask=rows.mask(),
        use_cache=True,
        logits_to_keep=1,
        **{model.cache_argument: rows_cache(slots, rows)},
    )
    return np.asarray(out.logits[rows.active, -1].float().cpu())
