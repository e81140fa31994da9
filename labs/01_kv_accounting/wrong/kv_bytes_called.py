# task: lab01.kv-bytes
# says: without calling it
kv_bytes_per_token = 30 * 2 * 3 * 64 * 2
