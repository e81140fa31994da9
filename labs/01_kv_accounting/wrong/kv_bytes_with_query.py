# task: lab01.kv-bytes
# says: Who reads the query of an old token again
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    return num_layers * (num_query_heads + 2 * num_kv_heads) * head_dim * bytes_per_element
