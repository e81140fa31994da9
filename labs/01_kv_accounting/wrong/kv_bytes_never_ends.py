# task: lab01.kv-bytes
# says: Does every loop come to its end?
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    while True:
        pass
