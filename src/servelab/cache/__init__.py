"""Where the keys and values live: block numbers, block tables, prefixes, tensors, and the contiguous baseline."""

from servelab.cache.contiguous import ContiguousCacheManager, OutOfSlots
from servelab.cache.manager import KVCacheManager
from servelab.cache.memory import CacheMemory
from servelab.cache.pool import BlockPool, OutOfBlocks
from servelab.cache.prefix import HashBlock, PrefixIndex, hash_block
from servelab.cache.storage import KV_FORMATS, KVScales, KVStorage, kv_bytes_per_token

__all__ = [
    "KV_FORMATS",
    "BlockPool",
    "CacheMemory",
    "ContiguousCacheManager",
    "HashBlock",
    "KVCacheManager",
    "KVScales",
    "KVStorage",
    "OutOfBlocks",
    "OutOfSlots",
    "PrefixIndex",
    "hash_block",
    "kv_bytes_per_token",
]
