# task: lab01.crossover
# says: You leave out the batch
def crossover(weight_bytes, kv_bytes_per_token, batch_size):
    return weight_bytes * batch_size // (kv_bytes_per_token * batch_size) + 1
