# task: lab02.waste
# says: somebody waits and does not get memory
def measure(trace):
    found = {"peak_blocks": 0, "empty_slots": 0, "crossings": 0, "refusals": 0, "tails_would_do": 0}
    for number, step in enumerate(trace.steps):
        requests = trace.state_at(number, "computed").requests
        blocks = sum(len(request.block_table) for request in requests)
        tokens = sum(request.num_computed_tokens for request in requests if request.block_table)
        at_peak = sum(len(request.block_table) for request in trace.state_at(number, "computed").requests)
        found["peak_blocks"] = max(found["peak_blocks"], at_peak)
        found["empty_slots"] += blocks * trace.block_size - tokens
        admitted = {event.request for event in step.events if event.kind == "admit"}
        found["crossings"] += sum(event.kind == "allocate" and event.request not in admitted for event in step.events)
        for event in step.events:
            if event.kind == "preempt":
                found["refusals"] += 1
                found["tails_would_do"] += requests[event.request].num_tokens <= trace.num_slots - tokens
    enough = 2 * found["tails_would_do"] >= found["refusals"]
    return {**found, "remedy": "smaller blocks" if enough else "more memory"}
