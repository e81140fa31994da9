# task: lab01.kv-bytes
# says: is there a `return`?
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    print(num_layers * 2 * num_kv_heads * head_dim * bytes_per_element)
