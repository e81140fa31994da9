"""`allocation_trace`: a cache manager driven by hand, without a model.

For examples small enough to follow with a pencil. The managers and the events are the engine's own, so the
widgets draw such a trace as they draw a real run.
"""

from collections.abc import Sequence

from servelab.cache import ContiguousCacheManager, KVCacheManager
from servelab.engine.config import check_positive
from servelab.engine.recorder import CacheManager, Recorder
from servelab.trace import Trace

Operation = tuple[str, str] | tuple[str, str, int] | tuple[str, str, int, int]

FORMS = '("place", name, tokens[, total]), ("append", name, tokens) or ("free", name)'


def allocation_trace(
    operations: Sequence[Operation], *, kv_cache: str = "paged", num_slots: int, block_size: int = 1
) -> Trace:
    """Do the operations one step each, and return the trace.

    - ``("place", "A", 7)``: request A arrives with 7 tokens and stores them. A fourth value is the total for which
      a contiguous pool reserves slots (default: as many as are placed); a paged pool has no use for it.
      When the memory does not suffice, A waits; the `Wait` event says what was missing, and placing A again retries.
    - ``("append", "A", 1)``: A stores 1 token more.
    - ``("free", "A")``: A finishes and gives everything back.

    kv_cache: "paged" (``num_slots / block_size`` blocks) or "contiguous" (first fit; `block_size` is not used).
    Tokens are called A1, A2, ... Raises ValueError for an operation that makes no sense, OutOfBlocks when an append
    finds no free block.
    """
    if not isinstance(operations, (list, tuple)) or not all(
        isinstance(operation, (list, tuple)) and len(operation) > 1 and isinstance(operation[1], str)
        for operation in operations
    ):
        raise ValueError(f"expected a list of operations ({FORMS}), got {operations!r:.80}")
    cache = _cache(kv_cache, num_slots, block_size)
    in_blocks = isinstance(cache, KVCacheManager)
    trace = Trace(kv_cache, num_slots // block_size if in_blocks else num_slots, block_size if in_blocks else 1)
    trace.max_num_seqs = max(1, len({operation[1] for operation in operations}))
    bench = _Bench(cache, Recorder(trace, cache))
    for operation in operations:
        match operation:
            case ("place", str(name), int(num_tokens)):
                bench.place(name, num_tokens, num_tokens)
            case ("place", str(name), int(num_tokens), int(total)):
                bench.place(name, num_tokens, total)
            case ("append", str(name), int(num_tokens)):
                bench.append(name, num_tokens)
            case ("free", str(name)):
                bench.free(name)
            case _:
                raise ValueError(f"expected {FORMS}, got {operation!r}")
        bench.recorder.close_step()
    return trace


def _cache(kv_cache: str, num_slots: int, block_size: int) -> CacheManager:
    check_positive("num_slots", num_slots)
    check_positive("block_size", block_size)
    if kv_cache == "contiguous":
        return ContiguousCacheManager(num_slots, reserve="exact")
    if kv_cache != "paged":
        raise ValueError(f'expected kv_cache "paged" or "contiguous", got {kv_cache!r}')
    if num_slots % block_size:
        raise ValueError(f"expected num_slots in whole blocks of {block_size}, got {num_slots}")
    return KVCacheManager(num_slots // block_size, block_size)


class _Bench:
    """The requests of one hand example: those that wait, and how many tokens each of the others stores."""

    def __init__(self, cache: CacheManager, recorder: Recorder) -> None:
        self.cache = cache
        self.recorder = recorder
        self.waiting: set[str] = set()
        self.stored: dict[str, int] = {}

    def place(self, name: str, num_tokens: int, total: int) -> None:
        if name in self.stored:
            raise ValueError(f"expected a request that holds no memory, got {name!r}, which is placed already")
        if not 1 <= num_tokens <= total:
            raise ValueError(f"expected 1 <= tokens <= total, got {num_tokens} tokens and a total of {total}")
        if name not in self.waiting:
            texts = [f"{name}{number}" for number in range(1, num_tokens + 1)]
            self.recorder.expect(name, list(range(1, num_tokens + 1)), total - num_tokens, texts)
            self.recorder.arrive(name)
            self.waiting.add(name)
        needed = total if isinstance(self.cache, ContiguousCacheManager) else num_tokens
        if not self.cache.can_allocate(name, needed):
            self.recorder.wait(name, "no_memory", self.cache.num_missing(name, needed))
            return
        self.waiting.remove(name)
        self.recorder.admit(name)
        self.recorder.allocate(name, self.cache.allocate(name, needed))
        self.stored[name] = num_tokens
        self.recorder.compute([(name, num_tokens)])

    def append(self, name: str, num_tokens: int) -> None:
        first = self._stored(name) + 1
        if num_tokens < 1:
            raise ValueError(f"expected at least 1 token to append, got {num_tokens}")
        self.recorder.allocate(name, self.cache.allocate(name, self.stored[name] + num_tokens))
        self.stored[name] += num_tokens
        self.recorder.compute([(name, num_tokens)])
        numbers = range(first, first + num_tokens)
        self.recorder.emit([(name, numbers, [f"{name}{number}" for number in numbers])])

    def free(self, name: str) -> None:
        del self.stored[self._named(name)]
        self.recorder.finish(name, "stop")
        self.recorder.free(name, self.cache.free(name))

    def _stored(self, name: str) -> int:
        return self.stored[self._named(name)]

    def _named(self, name: str) -> str:
        if name not in self.stored:
            raise ValueError(f"expected a placed request ({', '.join(self.stored) or 'none'}), got {name!r}")
        return name
