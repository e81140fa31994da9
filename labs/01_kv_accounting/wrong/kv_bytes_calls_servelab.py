# task: lab01.kv-bytes
# says: This uses servelab.costs
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    from servelab.costs import ModelSpec, kv_cache_bytes_per_token

    spec = ModelSpec("m", num_layers, 1, num_query_heads, num_kv_heads, head_dim, 1, 1, 1, "")
    return kv_cache_bytes_per_token(spec, bytes_per_element)
