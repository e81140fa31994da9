# task: lab01.crossover
# says: are not more than the weights yet
def crossover(weight_bytes, kv_bytes_per_token, batch_size):
    return -(-weight_bytes // (kv_bytes_per_token * batch_size))
