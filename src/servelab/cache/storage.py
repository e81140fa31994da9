"""`KVStorage`: the tensors that hold the keys and values. It knows slots, and nothing of requests."""

import torch


class KVStorage:
    """K and V of `num_blocks` blocks for every layer, in one tensor ``[2, L, P, block_size, G, D]``, set to 0.

    One tensor means one allocation: the pool's memory is taken at the start or not at all, and no request can
    run out of it in mid-flight except by the block manager's word.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (2, num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"expected every size of [2, L, P, block_size, G, D] to be >= 1, got {list(shape)}")
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tensor = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def keys(self, layer: int) -> torch.Tensor:
        """The keys of one layer, ``[P, block_size, G, D]``, a view: writing to it writes to the cache."""
        return self._tensor[0, layer]

    def values(self, layer: int) -> torch.Tensor:
        """The values of one layer, ``[P, block_size, G, D]``, a view."""
        return self._tensor[1, layer]

    def memory(self) -> int:
        """Bytes of the whole pool."""
        return self._tensor.numel() * self._tensor.element_size()

    def bytes_per_token(self) -> int:
        """Bytes of one slot over all layers, K and V."""
        return self.memory() // (self.num_blocks * self.block_size)
