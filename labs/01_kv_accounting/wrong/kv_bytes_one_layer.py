# task: lab01.kv-bytes
# says: You count one layer
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    return 2 * num_kv_heads * head_dim * bytes_per_element
