# task: lab02.block-manager
# says: This uses servelab.cache.manager, which is servelab's own
from servelab.cache import KVCacheManager


class BlockManager(KVCacheManager):
    def append(self, request_id):
        return True
