# %% [markdown] id="title" nbgrader={"grade": false, "grade_id": "title", "locked": true, "schema_version": 3, "solution": false, "task": false}
# # Lab 01: KV accounting, and the crossover
#
# **How many bytes does the cache take, and when is it heavier than the model?**
#
# Time: about 60 minutes · Difficulty: medium · Hardware: CPU, no network · 16 points
#
# | Task | What you do | Minutes | Difficulty | Points |
# |---|---|---|---|---|
# | 1 `kv-bytes` | write: the bytes of one token | 6 | easy | 2 |
# | 2 `crossover` | write: where KV overtakes the weights | 10 | medium | 3 |
# | 3 `pool-blocks` | debug: a pool of the wrong size, as it happened | 12 | medium | 3 |
# | 4 `plan` | design: pool, length and seats for your card | 15 | hard | 4 |
# | 5 `measure` | measure: the crossover in a trace | 15 | medium | 4 |
#
# You need chapter 01. Each task names the modules that your answer may import.
# What servelab computes itself is for comparing afterwards, not for handing in.

# %% [markdown] id="name-text" nbgrader={"grade": false, "grade_id": "name-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Before you start
#
# Type the name or number by which your teacher knows you. Your numbers are drawn from it: your neighbour's are others.
# You learn alone? Leave it empty.

# %% id="name"
LEARNER = ""

# %% id="numbers" nbgrader={"grade": false, "grade_id": "numbers", "locked": true, "schema_version": 3, "solution": false, "task": false}
from servelab.course import hint
from servelab.course.assignment import Assignment

COURSE_SEED = "servelab"
lab = Assignment("01", LEARNER, COURSE_SEED)
lab.constants["model"]

# %% [markdown] id="kv-bytes-text" nbgrader={"grade": false, "grade_id": "kv-bytes-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 1: bytes of one token
#
# *Write · 6 minutes · easy · 2 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# The cache keeps K and V of every token, in every layer. Write how many bytes one token takes.
#
# Try it by hand first: SmolLM2 has 30 layers, 9 query heads, 3 KV heads, heads of 64 numbers, 2 bytes a number.


# %% id="kv-bytes" nbgrader={"grade": false, "grade_id": "kv-bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    """Bytes that K and V of one token take over all layers. Returns an int."""
    ### BEGIN SOLUTION 1
    return num_layers * 2 * num_kv_heads * head_dim * bytes_per_element
    ### END SOLUTION


# %% id="kv-bytes-check" nbgrader={"grade": true, "grade_id": "kv-bytes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
lab.check("kv-bytes", kv_bytes_per_token)
### BEGIN HIDDEN TESTS
Assignment("01", LEARNER, COURSE_SEED).grade("kv-bytes", kv_bytes_per_token)
### END HIDDEN TESTS

# %% [markdown] id="stuck" nbgrader={"grade": false, "grade_id": "stuck", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Stuck? `hint("lab01.kv-bytes")` gives the first of three hints: a question, then what always holds, then the steps.
# Every task has three. Asking costs nothing.

# %% [markdown] id="crossover-text" nbgrader={"grade": false, "grade_id": "crossover-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 2: where KV overtakes the weights
#
# *Write · 10 minutes · medium · 3 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# One decode step reads all weights once, and K and V of every token that its requests hold.
# `batch_size` requests hold equally many tokens each. From how many tokens a request on does the step read **more** bytes
# of KV than of weights? Up to there decoding is bound by the weights, from there by the KV cache.
#
# Return the smallest such number. Where both are equal, KV is not more yet.
# By hand: 12,000 bytes of weights, 100 bytes a token, 4 requests. At 30 tokens each both are 12,000 bytes. What do you return?


# %% id="crossover" nbgrader={"grade": false, "grade_id": "crossover", "locked": false, "schema_version": 3, "solution": true, "task": false}
def crossover(weight_bytes, kv_bytes_per_token, batch_size):
    """The fewest tokens a request at which a step reads more KV than weights. Returns an int."""
    ### BEGIN SOLUTION 2
    return weight_bytes // (kv_bytes_per_token * batch_size) + 1
    ### END SOLUTION


# %% id="crossover-check" nbgrader={"grade": true, "grade_id": "crossover-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
lab.check("crossover", crossover)
### BEGIN HIDDEN TESTS
Assignment("01", LEARNER, COURSE_SEED).grade("crossover", crossover)
### END HIDDEN TESTS

# %% [markdown] id="pool-blocks-text" nbgrader={"grade": false, "grade_id": "pool-blocks-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 3: a pool of the wrong size
#
# *Debug · 12 minutes · medium · 3 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# An engine asks how many blocks fit into the memory that is left. The code below is right for Llama-3-8B and wrong for
# Qwen3-4B. The fault happened: in LMCache's calculator [LMCache#688], and in vLLM [vllm#2622], where the pool came out
# so that the attention kernel wrote into the model's weights. No error was raised; the weights changed while it ran.
#
# Run it, find the fault, and write the repaired function. A config may leave `head_dim` and `num_key_value_heads`
# out, or set them to null (`None`). Then each query head has its own KV head, and the heads share the hidden size.
# The numbers are of 16 bits.


# %% id="pool-blocks-reported" nbgrader={"grade": false, "grade_id": "pool-blocks-reported", "locked": true, "schema_version": 3, "solution": false, "task": false}
def reported_pool_blocks(config, memory_bytes, block_size):
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    bytes_per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * 2
    return memory_bytes // (block_size * bytes_per_token)


llama_3_8b = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
qwen3_4b = {
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
reported_pool_blocks(llama_3_8b, 2**31, 16), reported_pool_blocks(qwen3_4b, 2**31, 16)


# %% id="pool-blocks" nbgrader={"grade": false, "grade_id": "pool-blocks", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pool_blocks(config, memory_bytes, block_size):
    """How many whole blocks of block_size tokens fit into memory_bytes. Returns an int."""
    ### BEGIN SOLUTION 3
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    bytes_per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * 2
    return memory_bytes // (block_size * bytes_per_token)
    ### END SOLUTION


# %% id="pool-blocks-check" nbgrader={"grade": true, "grade_id": "pool-blocks-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
lab.check("pool-blocks", pool_blocks)
### BEGIN HIDDEN TESTS
Assignment("01", LEARNER, COURSE_SEED).grade("pool-blocks", pool_blocks)
### END HIDDEN TESTS

# %% [markdown] id="plan-text" nbgrader={"grade": false, "grade_id": "plan-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 4: a plan for your card
#
# *Design · 15 minutes · hard · 4 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# The card below is yours. Choose `num_blocks` (the pool), `max_model_len` (prompt and output tokens of one request at
# most) and `max_num_seqs` (seats: requests that run at once) so that all of this holds:
#
# 1. Weights, pool and `reserve_bytes` (activations, CUDA's own) fit into `memory_bytes`. A block holds `block_size` tokens.
# 2. The longest request gets through: `prompt_tokens` of prompt and `output_tokens` of output.
# 3. Nobody is preempted, even when every seat has grown to `max_model_len`. Count every token of `max_model_len` as stored,
#    the last one too.
# 4. The slowest step, every seat at `max_model_len`, reads at most `step_bytes`, weights and KV together.
# 5. As many requests run at once as rules 1 to 4 allow.

# %% id="card" nbgrader={"grade": false, "grade_id": "card", "locked": true, "schema_version": 3, "solution": false, "task": false}
lab.constants["card"]

# %% [markdown] id="plan-how" nbgrader={"grade": false, "grade_id": "plan-how", "locked": true, "schema_version": 3, "solution": false, "task": false}
# More than one plan is right: the checker recomputes what yours promises. Compute it from `card`, or work it out on paper
# and return your three numbers. Both count.


# %% id="plan" nbgrader={"grade": false, "grade_id": "plan", "locked": false, "schema_version": 3, "solution": true, "task": false}
def plan(card):
    """Your plan. Returns {"num_blocks": int, "max_model_len": int, "max_num_seqs": int}."""
    ### BEGIN SOLUTION 4
    tokens = card["prompt_tokens"] + card["output_tokens"]
    blocks_per_request = -(-tokens // card["block_size"])
    pool_bytes = card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"]
    num_blocks = pool_bytes // (card["block_size"] * card["kv_bytes_per_token"])
    by_memory = num_blocks // blocks_per_request
    by_step = (card["step_bytes"] - card["weight_bytes"]) // (tokens * card["kv_bytes_per_token"])
    return {"num_blocks": num_blocks, "max_model_len": tokens, "max_num_seqs": min(by_memory, by_step)}
    ### END SOLUTION


# %% id="plan-check" nbgrader={"grade": true, "grade_id": "plan-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
lab.check("plan", plan)
### BEGIN HIDDEN TESTS
Assignment("01", LEARNER, COURSE_SEED).grade("plan", plan)
### END HIDDEN TESTS

# %% [markdown] id="measure-text" nbgrader={"grade": false, "grade_id": "measure-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 5: the crossover in a trace
#
# *Measure · 15 minutes · medium · 4 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`, `servelab.trace`.
#
# A toy model on the real engine: 107,264 bytes of weights, 256 bytes of KV a token. Small enough that you
# see the crossover within a minute. The cell serves your load: `[step of arrival, prompt tokens, output tokens]` each.

# %% id="measure-run" nbgrader={"grade": false, "grade_id": "measure-run", "locked": true, "schema_version": 3, "solution": false, "task": false}
from servelab.course.tasks.workload import serve
from servelab.engine import Engine, EngineConfig
from servelab.model import toy_model

model, load = toy_model(), lab.constants["load"]
engine = Engine(model, EngineConfig(**load["engine"]))
trace = serve(engine, load)
weight_bytes = model.num_parameters * model.dtype.itemsize
print(f"{len(trace.requests)} requests, {len(trace.steps)} steps")
print(f"{weight_bytes:,} bytes of weights, {trace.kv_bytes_per_token} bytes of KV a token")

# %% [markdown] id="measure-what" nbgrader={"grade": false, "grade_id": "measure-what", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Write an instrument that reads a trace. It is tried on your trace and on others. It counts; it times nothing.
#
# | Name | What it is |
# |---|---|
# | `prompt_tokens`, `output_tokens` | of all requests together |
# | `written_bytes` | bytes of K and V written over the whole run |
# | `peak_tokens` | the most tokens stored at once, when a step has computed and nobody has left yet |
# | `first_step` | the first step that reads more bytes of KV than of weights; -1 if none does |
# | `cause` | `"arrival"` if a request was admitted in that step, else `"context"`; `"never"` if there is none |
#
# A step reads, for each request that it schedules, all tokens stored for it, its new ones among them.
# You have `trace.requests` (`num_prompt_tokens`, `num_output_tokens`), `trace.steps[i].events`, and
# `trace.state_at(i, "computed").requests[j]`: its `num_computed_tokens` are the tokens stored. One that is over keeps its
# number though its blocks are gone; look at its `status`. One step of yours:

# %% id="measure-look" nbgrader={"grade": false, "grade_id": "measure-look", "locked": true, "schema_version": 3, "solution": false, "task": false}
for event in trace.steps[1].events:
    print(event)
print(trace.state_at(1, "computed").requests[0])


# %% id="measure" nbgrader={"grade": false, "grade_id": "measure", "locked": false, "schema_version": 3, "solution": true, "task": false}
def measure(trace, weight_bytes):
    """Counts of one trace. Returns a dict with the six names above."""
    ### BEGIN SOLUTION 5
    first_step, cause, peak_tokens, scheduled_tokens = -1, "never", 0, 0
    for number, step in enumerate(trace.steps):
        requests = trace.state_at(number, "computed").requests
        stored = [request.num_computed_tokens if request.status == "running" else 0 for request in requests]
        rows = [row for event in step.events if event.kind == "schedule" for row in event.rows]
        scheduled_tokens += sum(num_tokens for _, num_tokens in rows)
        peak_tokens = max(peak_tokens, sum(stored))
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
    ### END SOLUTION


# %% id="measure-check" nbgrader={"grade": true, "grade_id": "measure-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
lab.check("measure", measure)
### BEGIN HIDDEN TESTS
Assignment("01", LEARNER, COURSE_SEED).grade("measure", measure)
### END HIDDEN TESTS

# %% [markdown] id="end" nbgrader={"grade": false, "grade_id": "end", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## What to take along
#
# The cache's bytes come from **KV heads**, both tensors and every layer. The weights are read once a step, the cache once
# for every request. So the crossover is a number of **tokens over all requests**: a long context and a full batch reach it alike.
#
# Sources: LMCache#688 (the calculator's head size), vllm#2622 (the head size in the engine), Kwon et al. 2023, section 3.
# Next: chapter 02, and lab 02, where you write the block manager.
