"""Were the answers those of the model alone? Each is held against one pass of plain transformers, without any store.

An answer is greedy if every token is the likeliest one behind those before it. One pass over prompt and answer shows that
for all its tokens at once, in the same float32 arithmetic, but summed in another order: where the two likeliest lie less
than TIE_GAP apart, either is right (a tie), and what follows is checked on the path that was taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncask.tools.demo.serving.reply import Outcome, Reply
from mooncask.tools.demo.verdict import TIE_GAP

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """Of all answers: `different` names those whose tokens the model alone would not have chosen."""

    answers: int
    distinct: int
    ties: int
    different: tuple[str, ...]


def check(model: Path, replies: Sequence[Reply], tell: Tell) -> Checked:
    """Equal answers to equal prompts are computed once, and so are the turns of one chat where each begins with the last."""
    answered = [reply for reply in replies if reply.outcome is Outcome.ANSWERED]
    wanted = {(reply.prompt_ids, reply.answer_ids): reply for reply in answered}
    longest = sorted({prompt + answer for prompt, answer in wanted}, key=len, reverse=True)
    passes = [whole for whole in longest if not any(_begins(other, whole) for other in longest)]
    reference = _Reference(model) if passes else None
    ties, different = 0, []
    left = dict(wanted)
    for number, whole in enumerate(passes, 1):
        assert reference is not None
        tell(f"without a store: pass {number} of {len(passes)}, {len(whole)} tokens")
        mine = [pair for pair in left if whole[: len(pair[0]) + len(pair[1])] == pair[0] + pair[1]]
        gaps = reference.gaps(whole, min(len(prompt) for prompt, _ in mine))
        for pair in mine:
            reply = left.pop(pair)
            end = len(gaps) - (len(whole) - len(pair[0]) - len(pair[1]))
            worst = max(gaps[end - len(pair[1]) : end], default=0.0)
            ties += 0 < worst < TIE_GAP
            if worst >= TIE_GAP:
                different.append(f"{reply.chat}, turn {reply.turn + 1}: off by {worst:.4f}")
    return Checked(len(answered), len(wanted), ties, tuple(different))


def _begins(whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return len(part) < len(whole) and whole[: len(part)] == part


class _Reference:
    """transformers' own model class, loaded as its documentation says."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
        self._torch = torch
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
        self._model = model.eval()

    def gaps(self, tokens: Sequence[int], begin: int) -> list[float]:
        """How far below the likeliest token each of `tokens[begin:]` lies; 0.0 for the likeliest itself."""
        torch, told = self._torch, len(tokens) - begin
        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=told + 1)
            logits = out.logits[0, :-1].float()
            chosen = logits.gather(1, torch.tensor(list(tokens[begin:]))[:, None])[:, 0]
            return [float(gap) for gap in logits.max(dim=1).values - chosen]
