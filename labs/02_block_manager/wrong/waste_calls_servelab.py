# task: lab02.waste
# says: This uses servelab.trace.occupancy
from servelab.trace import waste


def measure(trace):
    return {"empty_slots": waste(trace).internal}
