# task: lab01.kv-bytes
# says: This uses servelab.costs.memory, which is servelab's own
from servelab.costs import kv_cache_bytes_per_token

kv_bytes_per_token = kv_cache_bytes_per_token
