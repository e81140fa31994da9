"""`CacheMemory`: where every byte of the KV cache is."""

from dataclasses import dataclass

from servelab.cache.storage import KVStorage


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes of the KV cache, counted twice: by what they are, and by who has them. Each adds up to `total`.

    What they are: `keys` and `values` as stored, `scales` of a quantized format.

    Who has them: `used` holds tokens of requests (a block that several share counts once), `rounding` is the rest of
    what they hold: to whole blocks (paged) or reserved (contiguous). `cached` blocks have no owner and content that can
    still be found, `free` ones have neither. `static` scales belong to no slot.
    """

    keys: int
    values: int
    scales: int
    used: int
    rounding: int
    cached: int
    free: int
    static: int

    @property
    def total(self) -> int:
        return self.keys + self.values + self.scales


def cache_memory(storage: KVStorage | None, *, used_slots: int, held_slots: int, cached_slots: int) -> CacheMemory:
    """The bytes of `storage`, of whose slots requests hold `held_slots` and fill `used_slots`.

    Raises ValueError without a storage.
    """
    if storage is None:
        raise ValueError("expected a manager that was given its storage, got one without")
    num_slots = storage.num_blocks * storage.block_size
    token_bytes = storage.bytes_per_token()
    numbers = storage.memory() - storage.scale_memory()
    return CacheMemory(
        keys=numbers // 2,
        values=numbers // 2,
        scales=storage.scale_memory(),
        used=used_slots * token_bytes,
        rounding=(held_slots - used_slots) * token_bytes,
        cached=cached_slots * token_bytes,
        free=(num_slots - held_slots - cached_slots) * token_bytes,
        static=storage.memory() - num_slots * token_bytes,
    )


def check_storage(storage: KVStorage | None, num_blocks: int, block_size: int) -> None:
    """Raise ValueError unless the storage, where there is one, has the blocks that its manager hands out."""
    if storage is not None and (storage.num_blocks, storage.block_size) != (num_blocks, block_size):
        raise ValueError(
            f"expected a storage of {num_blocks} blocks of {block_size} slots, "
            f"got {storage.num_blocks} blocks of {storage.block_size}"
        )
