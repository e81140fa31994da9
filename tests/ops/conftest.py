"""Both backends of the CPU for every operator's test, and attention cases whose unused slots hold NaN."""

import random

import pytest
import torch

from servelab.kernels import dequantize_kv
from servelab.ops import AttentionBatch, CachedAttention, backend


@pytest.fixture(params=["compiled", "plain"])
def cpu_backend(request, monkeypatch):
    """Runs a test with compiled kernels, where this machine has them, and with PyTorch alone."""
    if request.param == "compiled" and backend.cannot_compile() is not None:
        pytest.skip(f"no compiled kernels here: {backend.cannot_compile()}")
    monkeypatch.setattr(backend, "choice", request.param)
    return request.param


@pytest.fixture
def compiled(monkeypatch):
    """Skips a test where there are no compiled kernels, else runs it with them."""
    if backend.cannot_compile() is not None:
        pytest.skip(f"no compiled kernels here: {backend.cannot_compile()}")
    monkeypatch.setattr(backend, "choice", "compiled")


class Storage:
    """Two layers of NaN, keys and values as views of one tensor [L, P, block_size, 2, G, D] [aiter#3498]."""

    def __init__(self, num_blocks, block_size, G, D, format="auto", dtype=torch.float32):
        self.format = format
        shape = (2, num_blocks, block_size, 2, G, D)
        self._scales = None
        if format == "auto":
            self.pool = torch.full(shape, float("nan"), dtype=dtype)
        elif format == "int8":
            self.pool = torch.full(shape, 77, dtype=torch.int8)
            self._scales = torch.full(shape[:-1], float("nan"), dtype=torch.float16)
        else:
            self.pool = torch.full(shape, 0x7F, dtype=torch.uint8)  # NaN in both formats
            self._scales = torch.rand(2, 2, G) + 0.2

    def keys(self, layer):
        return self.pool[layer, :, :, 0]

    def values(self, layer):
        return self.pool[layer, :, :, 1]

    def key_scales(self, layer):
        return self._scales_of(layer, 0)

    def value_scales(self, layer):
        return self._scales_of(layer, 1)

    def _scales_of(self, layer, which):
        if self._scales is None:
            return None
        return self._scales[layer, :, :, which] if self.format == "int8" else self._scales[layer, which]

    def read(self, layer, slots):
        """What the slots hold, as float32 K and V [S, G, D]."""
        found = []
        for stored, scales in (
            (self.keys(layer), self.key_scales(layer)),
            (self.values(layer), self.value_scales(layer)),
        ):
            rows = stored.flatten(0, 1)[slots]
            if scales is None:
                found.append(rows.float())
            else:
                of_rows = scales.flatten(0, 1)[slots] if self.format == "int8" else scales
                found.append(dequantize_kv(rows, of_rows[..., None], self.format))
        return found


def reference(q, k, v, last=lambda row, Lq, S: S - Lq + row, head=lambda h, H, G: h // (H // G)):
    """In float64, one query and one head at a time.

    last: the last key that a row sees; head: the KV head of a query head.
    """
    (Lq, H, D), (S, G, _) = q.shape, k.shape
    out = torch.zeros(Lq, H, D, dtype=torch.float64)
    for row in range(Lq):
        for h in range(H):
            keys = k[: last(row, Lq, S) + 1, head(h, H, G)].double()
            values = v[: last(row, Lq, S) + 1, head(h, H, G)].double()
            out[row, h] = torch.softmax(keys @ q[row, h].double() / D**0.5, dim=0) @ values
    return out


class Case:
    """Sequences of given lengths in a shuffled pool; what each had stored before the step is in its slots.

    lengths: (query, context) of each. shape: H, G, D.
    """

    def __init__(self, lengths, shape, block_size=4, paged=True, seed=0, format="auto", dtype=torch.float32):
        H, G, D = shape
        torch.manual_seed(seed)
        self.lengths = lengths
        blocks = [-(-context // block_size) for _, context in lengths]
        order = list(range(sum(blocks) + 3))
        random.Random(seed).shuffle(order)
        self.storage = Storage(len(order), block_size, G, D, format, dtype)
        self.k = [torch.randn(context, G, D) for _, context in lengths]
        self.v = [torch.randn(context, G, D) for _, context in lengths]
        self.q = [torch.randn(query, H, D) for query, _ in lengths]
        tables, self.slots, used = [], [], 0
        for count, (_, context) in zip(blocks, lengths, strict=True):
            tables.append(order[used : used + count] if paged else list(range(used, used + count)))
            used += count
            own = [tables[-1][t // block_size] * block_size + t % block_size for t in range(context)]
            self.slots.append(own)
        places = tables if paged else None, None if paged else [own[0] for own in self.slots]
        self.batch = AttentionBatch(
            [query for query, _ in lengths],
            [context for _, context in lengths],
            [
                slot
                for (query, context), own in zip(lengths, self.slots, strict=True)
                for slot in own[context - query :]
            ],
            *places,
            block_size,
        )
        for (query, context), own, k, v in zip(lengths, self.slots, self.k, self.v, strict=True):
            if query < context:
                earlier = slice(0, context - query)
                self.store(own[earlier], k[earlier], v[earlier], H)

    def store(self, slots, k, v, H):
        """Write what was there before the step, in the cache's own format, by PyTorch."""
        batch = AttentionBatch([1] * len(slots), [1] * len(slots), slots, starts=slots, block_size=self.block_size)
        attention = CachedAttention(batch, self.storage, "naive")
        for layer in (0, 1):
            attention(layer, torch.zeros(len(slots), H, k.shape[2]), k, v)

    @property
    def block_size(self):
        return self.storage.pool.shape[2]

    def new(self, stored):
        return torch.cat([x[context - query :] for x, (query, context) in zip(stored, self.lengths, strict=True)])

    def run(self, algorithm="auto", layer=1):
        attention = CachedAttention(self.batch, self.storage, algorithm)
        return attention(layer, torch.cat(self.q), self.new(self.k), self.new(self.v))

    def expected(self, layer=1, **changes):
        """What `run` should have given, from the numbers that its storage holds now."""
        stored = [self.storage.read(layer, slots) for slots in self.slots]
        return torch.cat([reference(q, *kv, **changes) for q, kv in zip(self.q, stored, strict=True)])


@pytest.fixture(scope="session")
def make_case():
    """``make_case(lengths, shape, block_size=4, paged=True, seed=0, format="auto", dtype=float32)``."""
    return Case


@pytest.fixture(scope="session")
def attention_reference():
    """``attention_reference(q [Lq, H, D], k, v [S, G, D]) -> [Lq, H, D]`` in float64."""
    return reference
