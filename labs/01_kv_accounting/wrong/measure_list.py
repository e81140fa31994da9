# task: lab01.measure
# says: exactly the six names
def measure(trace, weight_bytes):
    return [len(trace.requests), weight_bytes]
