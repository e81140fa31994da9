"""What a draft head meets while it drafts, for all positions of a text at once (training-time test, Li et al. 2025).

A head that is trained on the target's hidden states alone has never seen its own, which it must go on from after the
first draft token. So training takes the same steps as drafting does, from every position of the text in parallel:

    step 0:  state h[p-1], the target's          keys of tokens 0 .. p      made from the target's states
    step 1:  state h'[p-1] of step 0             keys of tokens 0 .. p-1    from the target's,  p from step 1
    step j:  state h'[p-1] of step j-1           keys of tokens 0 .. p-j    from the target's,  p-j+i from step i

Row p of step j is what the head would guess for token p + 1, had it drafted the last j tokens itself.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from servelab.speculative.head import HeadNetwork


class UnrolledAttention:
    """Attention for the head's one layer: called once a step, it keeps the keys and values of the steps before.

    lengths: tokens of each sequence; they lie packed behind each other, T in all.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.steps: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, H, D]; k, v: [T, G, D]. Returns [T, H, D]."""
        self.steps.append((k, v))
        out, start = [], 0
        for length in self.lengths:
            stop = start + length
            out.append(self._attend(q[start:stop], [(k[start:stop], v[start:stop]) for k, v in self.steps]))
            start = stop
        return torch.cat(out)

    def _attend(self, q: Tensor, steps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """One sequence of S tokens: q [S, H, D], and for each step so far k and v [S, G, D]."""
        S, H, D = q.shape
        G, last = steps[0][0].shape[1], len(steps) - 1
        q = q.reshape(S, G, H // G, D).permute(1, 2, 0, 3) * D**-0.5  # [G, H / G, S, D]
        heads = [(k.transpose(0, 1)[:, None], v.transpose(0, 1)[:, None]) for k, v in steps]  # [G, 1, S, D]
        true = torch.ones(S, S, dtype=torch.bool, device=q.device).tril(-last)
        scores = [(q @ heads[0][0].transpose(-1, -2)).masked_fill(~true, float("-inf"))]  # [G, H / G, S, S]
        for step in range(1, last + 1):  # one key a row: of the token that step `step` of this row's draft stood at
            own = (q * later(heads[step][0], last - step)).sum(-1, keepdim=True)
            own[..., : last - step, :] = float("-inf")
            scores.append(own)  # [G, H / G, S, 1]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = weights[..., :S] @ heads[0][1]
        for step in range(1, last + 1):
            out = out + weights[..., S + step - 1, None] * later(heads[step][1], last - step)
        return out.permute(2, 0, 1, 3).reshape(S, H, D)


def later(x: Tensor, rows: int) -> Tensor:
    """Move x [..., S, D] down by `rows`, zeros coming in from above."""
    if not rows:
        return x
    return torch.cat((torch.zeros_like(x[..., :rows, :]), x[..., : x.shape[-2] - rows, :]), dim=-2)


def before(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """The row before each one within its sequence: [T, E]. The first token of a sequence gets zeros."""
    moved = torch.cat((torch.zeros_like(x[:1]), x[:-1]))
    first = torch.tensor([0, *lengths[:-1]], device=x.device).cumsum(0)
    return moved.index_fill(0, first, 0.0)


def unroll(
    network: HeadNetwork, hidden: Tensor, embeddings: Tensor, lengths: Sequence[int], num_steps: int
) -> Iterator[Tensor]:
    """Yield the guessed states [T, E] of each step. hidden: [T, E] the target's; embeddings: [T, E] of the tokens."""
    attention = UnrolledAttention(lengths)
    positions = torch.cat([torch.arange(length, device=hidden.device) for length in lengths])
    state = hidden
    for _ in range(num_steps):
        state = network(before(state, lengths), embeddings, positions, attention)
        yield state
