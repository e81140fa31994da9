# task: lab02.waste
# says: exactly the six names
def measure(trace):
    return [len(trace.steps)]
