"""`ContiguousCacheManager`: the baseline that PagedAttention replaced.

Each request gets one unbroken range of slots when it starts, long enough for all it might ever become. It can
neither grow nor move, so memory is lost inside the ranges (reserved, never used) and between them (holes).
"""

from collections.abc import Sequence

from servelab.cache.memory import CacheMemory, cache_memory, check_storage
from servelab.cache.pool import check_count, check_index
from servelab.cache.storage import KVStorage
from servelab.costs import holes

RESERVES = ("max", "exact")


class OutOfSlots(RuntimeError):
    """No hole is long enough. `needed`, `free` and `largest` (the longest hole) count slots."""

    def __init__(self, needed: int, free: int, largest: int) -> None:
        super().__init__(f"needed {needed} free slots in a row, got {free} free slots, at most {largest} in a row")
        self.needed = needed
        self.free = free
        self.largest = largest


class ContiguousCacheManager:
    """First-fit ranges in a pool of `num_slots` slots, one slot per token.

    reserve: "max" gives every request `max_model_len` slots; "exact" gives it the number it asks for, which a
    server that trusts `max_tokens` knows in advance. storage: the tensors behind the slots, for `memory`.

    A range belongs to one request, so nothing is ever found again (`match_prefix`) or copied on write: the methods
    for both are those of `KVCacheManager`, with nothing to do.
    """

    block_size = 1
    prefix_caching = False

    def __init__(
        self,
        num_slots: int,
        reserve: str = "max",
        max_model_len: int | None = None,
        *,
        storage: KVStorage | None = None,
    ) -> None:
        check_count("num_slots", num_slots)
        if reserve not in RESERVES:
            raise ValueError(f"expected reserve in {RESERVES}, got {reserve!r}")
        if max_model_len is not None:
            check_count("max_model_len", max_model_len)
        if reserve == "max" and not 1 <= (max_model_len or 0) <= num_slots:
            raise ValueError(f"expected max_model_len in 1..{num_slots} (num_slots) to reserve it, got {max_model_len}")
        self.num_slots = num_slots
        self.reserve = reserve
        self.max_model_len = max_model_len
        check_storage(storage, num_slots, self.block_size)
        self.storage = storage
        self._ranges: dict[str, range] = {}
        self._num_tokens: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        """Free memory in this manager's unit: slots."""
        return self.num_slots - sum(len(slots) for slots in self._ranges.values())

    @property
    def num_free_slots(self) -> int:
        return self.num_free

    @property
    def largest_hole(self) -> int:
        """Length of the longest run of free slots: the longest request that still fits."""
        return max((len(hole) for hole in self.holes()), default=0)

    @property
    def largest_free(self) -> int:
        """The most one request could still get, in slots."""
        return self.largest_hole

    @property
    def request_ids(self) -> list[str]:
        """The requests that hold slots."""
        return list(self._ranges)

    def holes(self) -> list[range]:
        """The runs of free slots, from the start of the pool to its end."""
        return [range(start, start + length) for start, length in holes(self.num_slots, self._taken())]

    def match_prefix(self, token_ids: Sequence[int], salt: str | None = None) -> list[int]:
        """No blocks: a range keeps nothing that another request could begin with."""
        return []

    def num_missing(self, request_id: str, num_tokens_total: int, prefix: Sequence[int] = ()) -> int:
        """Slots in a row that the request still lacks: 0 once it holds a range that is long enough."""
        needed = self._length_for(num_tokens_total)
        return 0 if len(self._ranges.get(request_id, range(0))) >= needed else needed

    def can_allocate(self, request_id: str, num_tokens_total: int, prefix: Sequence[int] = ()) -> bool:
        """Whether `allocate` with the same arguments would succeed now."""
        num_missing = self.num_missing(request_id, num_tokens_total)
        return num_missing == 0 or (request_id not in self._ranges and num_missing <= self.largest_hole)

    def allocate(self, request_id: str, num_tokens_total: int) -> range:
        """Reserve slots for all tokens that the request may ever have; return the new slots.

        The first hole that is long enough takes it. A request that holds enough already gets ``range(0)``.
        Raises OutOfSlots when no hole is long enough, ValueError when the request would have to grow.
        """
        needed = self.num_missing(request_id, num_tokens_total)
        if needed == 0:
            self._num_tokens[request_id] = num_tokens_total
            return range(0)
        if request_id in self._ranges:
            held = len(self._ranges[request_id])
            raise ValueError(f"expected at most the {held} slots that {request_id!r} reserved, got {needed}")
        for hole in self.holes():
            if len(hole) >= needed:
                self._ranges[request_id] = hole[:needed]
                self._num_tokens[request_id] = num_tokens_total
                return hole[:needed]
        raise OutOfSlots(needed, self.num_free, self.largest_hole)

    def trim(self, request_id: str, num_tokens: int) -> range:
        """Count the slots behind the request's first `num_tokens` tokens as unused. Its range stays: ``range(0)``.

        Raises ValueError when the request holds no range, or num_tokens is below 1.
        """
        check_count("num_tokens", num_tokens)
        self._range(request_id)
        self._num_tokens[request_id] = min(self._num_tokens[request_id], num_tokens)
        return range(0)

    def free(self, request_id: str) -> range:
        """Give the request's range back and return it; ``range(0)`` when it holds none."""
        self._num_tokens.pop(request_id, None)
        return self._ranges.pop(request_id, range(0))

    def needs_copy(self, request_id: str, position: int) -> bool:
        """False: no slot has two owners."""
        return False

    def copy_on_write(self, request_id: str, position: int) -> None:
        """Nothing to copy."""

    def cache_full_blocks(
        self, request_id: str, token_ids: Sequence[int], salt: str | None = None, num_tokens: int | None = None
    ) -> list[tuple[int, int]]:
        """Nothing that could be found later."""
        return []

    def take_evictions(self) -> list[int]:
        """Nothing was cached, so nothing is lost."""
        return []

    def num_slots_held(self, request_id: str) -> int:
        """Tokens that the request's range has room for; 0 when it holds none."""
        return len(self._ranges.get(request_id, ()))

    def start(self, request_id: str) -> int:
        """The slot of the request's token 0."""
        return self._range(request_id).start

    def slot(self, request_id: str, position: int) -> int:
        """The slot of token `position`. Raises ValueError outside the request's range."""
        slots = self._range(request_id)
        check_index("a position", position, len(slots), f" of request {request_id!r}")
        return slots[position]

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of the tokens ``start .. stop - 1``. Raises ValueError outside the request's range."""
        slots = self._range(request_id)
        if not 0 <= start <= stop <= len(slots):
            raise ValueError(
                f"expected 0 <= start <= stop <= {len(slots)} (the slots of request {request_id!r}), "
                f"got {start} and {stop}"
            )
        return list(slots[start:stop])

    def memory(self) -> CacheMemory:
        """Where every byte of the storage is. Raises ValueError when the manager was given no storage."""
        return cache_memory(
            self.storage,
            used_slots=sum(self._num_tokens.values()),
            held_slots=self.num_slots - self.num_free,
            cached_slots=0,
        )

    def check_integrity(self) -> None:
        """Raise RuntimeError when two ranges overlap, one leaves the pool, or one is shorter than its tokens."""
        try:
            self.holes()
        except ValueError as error:
            raise RuntimeError(f"two requests share slots, or one left the pool: {error}") from None
        for request_id in self._ranges.keys() | self._num_tokens.keys():
            held, num_tokens = self.num_slots_held(request_id), self._num_tokens.get(request_id, 0)
            if not 1 <= num_tokens <= held:
                raise RuntimeError(f"request {request_id!r} has {num_tokens} tokens in {held} slots")

    def _taken(self) -> list[tuple[int, int]]:
        return [(slots.start, len(slots)) for slots in self._ranges.values()]

    def _length_for(self, num_tokens_total: int) -> int:
        check_count("num_tokens_total", num_tokens_total)
        if self.reserve == "exact" or self.max_model_len is None:
            return num_tokens_total
        if num_tokens_total > self.max_model_len:
            raise ValueError(
                f"expected num_tokens_total <= {self.max_model_len} (max_model_len), got {num_tokens_total}"
            )
        return self.max_model_len

    def _range(self, request_id: str) -> range:
        if request_id not in self._ranges:
            raise ValueError(f"expected a request that holds slots, got {request_id!r}")
        return self._ranges[request_id]
