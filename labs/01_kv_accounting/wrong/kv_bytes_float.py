# task: lab01.kv-bytes
# says: The type is not right: expected int, got float
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    return num_layers * 2 * num_kv_heads * head_dim * bytes_per_element / 1
