# task: lab01.measure
# says: You count the slots of the blocks
def measure(trace, weight_bytes):
    first_step, cause, peak_tokens, scheduled_tokens = -1, "never", 0, 0
    for number, step in enumerate(trace.steps):
        requests = trace.state_at(number, "computed").requests
        stored = [request.num_computed_tokens if request.status == "running" else 0 for request in requests]
        rows = [row for event in step.events if event.kind == "schedule" for row in event.rows]
        scheduled_tokens += sum(num_tokens for _, num_tokens in rows)
        peak_tokens = max(peak_tokens, sum(len(request.block_table) for request in requests) * trace.block_size)
        read_bytes = sum(stored[request] for request, _ in rows) * trace.kv_bytes_per_token
        if first_step < 0 and read_bytes > weight_bytes:
            first_step = number
            cause = "arrival" if any(event.kind == "admit" for event in step.events) else "context"
    return {
        "prompt_tokens": sum(request.num_prompt_tokens for request in trace.requests),
        "output_tokens": sum(request.num_output_tokens for request in trace.requests),
        "written_bytes": scheduled_tokens * trace.kv_bytes_per_token,
        "peak_tokens": peak_tokens,
        "first_step": first_step,
        "cause": cause,
    }
