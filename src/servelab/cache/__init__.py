"""Where the keys and values live: block numbers, block tables, tensors, and the contiguous baseline."""

from servelab.cache.contiguous import ContiguousCacheManager, OutOfSlots
from servelab.cache.manager import KVCacheManager
from servelab.cache.pool import BlockPool, OutOfBlocks
from servelab.cache.storage import KVStorage

__all__ = ["BlockPool", "ContiguousCacheManager", "KVCacheManager", "KVStorage", "OutOfBlocks", "OutOfSlots"]
