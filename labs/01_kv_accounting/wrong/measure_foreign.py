# task: lab01.measure
# says: This uses json
def measure(trace, weight_bytes):
    import json

    return json.loads("{}")
