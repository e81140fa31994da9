# task: lab01.crossover
# says: One token fewer overtakes
def crossover(weight_bytes, kv_bytes_per_token, batch_size):
    return weight_bytes // (kv_bytes_per_token * batch_size) + 2
