# task: lab01.crossover
# says: expected int, got float
def crossover(weight_bytes, kv_bytes_per_token, batch_size):
    return weight_bytes / (kv_bytes_per_token * batch_size)
