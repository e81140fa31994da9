"""`FusedHead`: a draft head's pass as one compiled kernel, where weights and cache allow it.

Drafting a token takes a twentieth of the target's step on a CPU. Started operator by operator, with the processor's
caches full of the target's weights, the same token takes three times as long.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from servelab.model.fused import address_of, fits, is_float32, linear_weights
from servelab.model.network import TiedEmbedding
from servelab.ops import CachedAttention, HeadResult, HeadWeights, Layers, Linear, run_head
from servelab.speculative.head import HeadNetwork


class FusedHead:
    """network, rows: of a head that is ready for inference, and the target's output rows that it drafts.

    Where their weights lie is looked up once: a head is nobody's but its proposer's, and stays as it is.
    """

    def __init__(self, network: HeadNetwork, rows: Linear) -> None:
        self.network = network
        self.rows = rows
        self.embedding = (0, 0)  # where the target's embedding lies, and its numbers' width
        self.found: tuple[HeadWeights, Layers] | None = None  # with this embedding

    def run(
        self,
        hidden: Tensor,
        embedding: nn.Module,
        token_ids: Sequence[int],
        positions: Sequence[int],
        last: Sequence[int],
        cos: Tensor,
        sin: Tensor,
        attention: CachedAttention,
    ) -> HeadResult | None:
        """What `HeadNetwork` guesses for the rows `last`, bit for bit; None where it must compute that itself.

        hidden: [T, E] the state before each token. embedding: the target's. cos, sin: [longest, 1, D].
        Raises ValueError for a position beyond them: the kernel reads by address, and would find anything there.
        """
        if torch.is_grad_enabled() or not fits(attention, hidden):
            return None
        found = self.find(embedding)
        if found is None:
            return None
        if max(positions) >= len(cos):
            raise ValueError(f"expected positions in 0..{len(cos) - 1}, got {max(positions)}")
        return run_head(
            *(hidden.contiguous(), token_ids, positions, last, *found, self.rows.out_features),
            *(cos, sin, attention),
        )

    def find(self, embedding: nn.Module) -> tuple[HeadWeights, Layers] | None:
        """Where the weights lie, or None where one is of another kind than the kernel reads."""
        if type(embedding) is not TiedEmbedding or embedding.head.form != "panels":
            return None
        weight = embedding.head.weight
        place = weight.data_ptr(), weight.element_size()
        if place != self.embedding:
            self.embedding, self.found = place, self.look_up(embedding)
        return self.found

    def look_up(self, embedding: TiedEmbedding) -> tuple[HeadWeights, Layers] | None:
        network = self.network
        norms = [network.hidden_norm, network.embedding_norm, network.norm]
        linears = [embedding.head, network.fuse, self.rows]
        if not all(linear.form == "panels" for linear in linears) or not all(is_float32(n.weight) for n in norms):
            return None
        layers = network.fused.packed()
        weights = HeadWeights(*map(address_of, norms), *map(linear_weights, linears))
        return None if layers is None else (weights, layers)
