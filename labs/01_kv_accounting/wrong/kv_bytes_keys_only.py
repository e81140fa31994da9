# task: lab01.kv-bytes
# says: You store one tensor for each token
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    return num_layers * num_kv_heads * head_dim * bytes_per_element
