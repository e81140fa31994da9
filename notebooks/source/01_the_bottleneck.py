# %% [markdown] id="title" tags=["path55"]
# # The bottleneck: why is decoding slow?
#
# **55 minutes** of core · Difficulty: medium · runs on a CPU, no GPU needed · comes after chapter 00
#
# In chapter 00 a model answered you, one token after another. Why does each output token take so long, and why can an
# expensive card serve only a few people? In this chapter you switch the KV cache off and on, find out what a step
# really waits for, and then catch three kinds of waste in runs of your own.
#
# Three ideas: the **KV cache** and what it costs, the **memory-bound** step, and **waste**: memory and seats that nobody
# uses. What is marked "Deeper" can be skipped.

# %% id="set-up" tags=["path55"]
import timeit

import numpy as np

from servelab.cache import ContiguousCacheManager
from servelab.costs import GPU_SPECS, MODEL_SPECS, Roofline, arithmetic_intensity, weight_bytes
from servelab.costs import decode_step_bytes, decode_step_flops, decode_step_seconds, prefill_bytes, prefill_flops
from servelab.costs import kv_cache_bytes_per_token, kv_weight_crossover_tokens
from servelab.course import check, goals, hint, machine, own_words, predict, quiz, reveal, show, source
from servelab.device import measured_bandwidth, measured_matmul_flops
from servelab.engine import Engine, EngineConfig, allocation_trace
from servelab.figures import bars, curve, kv_growth, roofline
from servelab.model import load_model
from servelab.ops import CachedAttention, PackedCausalAttention
from servelab.sampling import SamplingParams
from servelab.trace import Schedule, waste
from servelab.widgets import KVCalculatorWidget, MemoryMapWidget

model = load_model("smollm2-135m", progress=False)
goals("01")
quiz("01.retrieval")

# %% [markdown] id="loop-1" tags=["path55"]
# ## 1. Keep K and V, or compute them again
#
# To find the next output token, the network needs the keys and values of **all** tokens so far: prompt tokens and
# output tokens. The simplest program keeps nothing. It sends the whole text through the network for every output token.
#
# A token on its way through the network is a **row**. Time that program on texts of 16 to 256 tokens: how long does it
# take to the next output token? Each time is the best of three, after a warm-up.

# %% id="pain" tags=["path55"]
ids = model.tokenizer.encode("Once upon a time there was a server. " * 40)[:256]

def next_token(n):  # without a cache: all n tokens so far pass the network
    return int(model.forward(ids[:n], range(n), PackedCausalAttention([n]), logits_rows=[n - 1]).argmax())

lengths = [16, 64, 128, 256]
next_token(256)
without = {n: min(timeit.repeat(f"next_token({n})", number=1, repeat=3, globals=globals())) for n in lengths}
for n in (16, 256):
    print(f"{n:3} tokens so far, {n:3} rows: {1000 * without[n]:6.0f} ms for one output token")
print(f"Measured on {machine()}")

# %% [markdown] id="by-hand" tags=["path55"]
# ### By hand: A has 7 prompt tokens and gets 5 output tokens
#
# Take a pencil. **Without a cache**, the first output token needs 7 rows: the prompt. Now the text has 8 tokens, so the
# second needs 8 rows, and so on.
#
# **With a cache**, the first step is the same: 7 rows. But their K and V are kept: that is the **KV cache**. The second
# step computes only what is new, the first output token: 1 row. It looks at the 7 that are stored. And the last output
# token is never computed: nobody looks at it.
#
# Add both columns up. Then run the cell: the last column is what our engine did, read from its trace.

# %% id="by-hand-table" tags=["path55"]
engine = Engine(model, EngineConfig(num_blocks=16))
engine.generate(["The sky is blue because of the"], SamplingParams(max_tokens=5, ignore_eos=True))
record = engine.trace.requests[0]
p, n = record.num_prompt_tokens, record.num_output_tokens
by_engine = [event.rows[0][1] for step in engine.trace.steps for event in step.events if isinstance(event, Schedule)]

table = ["| Output token | Tokens before it | Rows without a cache | Rows with a cache | Rows of the engine |"]
table.append("|---" * 5 + "|")
for i in range(n):
    text = record.token_texts[p + i].strip()
    table.append(f"| {i + 1}: {text} | {p + i} | {p + i} | {p if i == 0 else 1} | {by_engine[i]} |")
total = sum(range(p, p + n))
table.append(f"| **together** | | **{total}** | **{p + n - 1}** | **{sum(by_engine)}** |")
show("\n".join(table))

# %% id="next-token-predict" tags=["path55"]
predict("01.next-token")

# %% id="next-token-reveal" tags=["path55"]
def decode_s(num_requests, num_prompt_tokens):  # seconds of a step that decodes: the best of four
    engine = Engine(model, EngineConfig(num_blocks=64, max_num_seqs=num_requests, max_num_batched_tokens=1024))
    engine.generate([ids[:num_prompt_tokens]] * num_requests, SamplingParams(max_tokens=5, ignore_eos=True))
    return min(step.duration_s for step in engine.trace.steps[1:])

cached = {n: decode_s(1, n) for n in lengths}
reveal("01.next-token", {
    "actual": without[256] / cached[256], "rows": 256, "without_ms": 1000 * without[256],
    "with_ms": 1000 * cached[256], "row_ms": 1000 * without[256] / 256, "ratio": 256 * cached[256] / without[256],
}, curve(
    lengths,
    {"without a cache": [1000 * without[n] for n in lengths], "with a cache": [1000 * cached[n] for n in lengths]},
    x_title="tokens of the text so far", y_title="ms for the next output token", height=340,
    sentence=f"From 16 to 256 tokens of text, the next output token takes {without[256] / without[16]:.1f} times as "
             f"long without a cache, and {cached[256] / cached[16]:.1f} times as long with one.",
))

# %% [markdown] id="rows-formula"
# ### The formula, and one knob
#
# With *p* prompt tokens and *n* output tokens, in rows through the network:
#
# - **without a cache**: *n* × *p* + *n* × (*n* − 1) ÷ 2. There is *n*² in it: **quadratic**.
# - **with a cache**: *p* + *n* − 1. **Linear**. (Each row still looks at all stored tokens; that part grows.)
#
# The next cell evaluates both, and shows the code. In every layer it writes the new keys and values to their slots, and
# then attends to all that is stored. After it you turn one knob: the number of output tokens after 16 prompt tokens,
# from 1 to 240. Before you run it: what does the cache win when you ask for **one** output token?

# %% id="rows-formula-run"
for p, n in ((7, 5), (16, 240)):
    print(f"{p} prompt tokens, {n} output tokens, without a cache: "
          f"{n} × {p} + {n} × {n - 1} ÷ 2 = {n * p + n * (n - 1) // 2:,} rows; with it: {p} + {n} - 1 = {p + n - 1} rows")
source(CachedAttention.__call__, docstring=False)

# %% id="output-knob"
slow = np.cumsum(np.interp(range(16, 256), lengths, list(without.values())))  # seconds up to output token 1, 2, ...
fast = np.cumsum(np.interp(range(16, 256), lengths, list(cached.values())))
fast += slow[0] - fast[0]  # the first output token needs the whole prompt either way
counts = [1, 2, 4, 8, 15, 30, 60, 120, 240]
show(
    curve(
        counts, {"without a cache": [slow[n - 1] for n in counts], "with a cache": [fast[n - 1] for n in counts]},
        x_title="output tokens, after 16 prompt tokens", y_title="seconds for the whole answer",
        log_x=True, log_y=True, height=340,
    ),
    "One output token: both ways compute the same prompt, so both curves start together. 240 output tokens: the cache "
    f"wins {slow[-1] / fast[-1]:.1f} times. The measured times per token are added up, those between them estimated.",
)
rows = {n: n * 16 + n * (n - 1) // 2 for n in (120, 240)}
print(f"From 120 to 240 output tokens, without a cache: {rows[240] / rows[120]:.1f} times the rows, "
      f"{slow[239] / slow[119]:.1f} times the time; with it: {fast[239] / fast[119]:.1f} times the time ({machine()})")

# %% [markdown] id="loop-2" tags=["path55"]
# ## 2. What a step waits for
#
# A request has two phases. In the **prefill** all prompt tokens pass the network together, in one step. Then comes the
# **decode**: one row a step, one output token a step.
#
# You have timed both already, with the same weights. Look back at the result in section 1: 256 rows that pass together
# are a prefill of 256 prompt tokens, and the one row alone is a decode step. A row of the decode costs many times as
# much. What does it wait for?
#
# Requests that are computed in the same step are a **batch**. So far the batch was 1.

# %% [markdown] id="roofline-words" tags=["path55"]
# ### By hand: two clocks
#
# Each step reads all weights (the model's **parameters**) from memory, and for each row it does 2 FLOPs (multiply, add)
# with every weight. Large servers keep 2 bytes a number (16 bit); your CPU may use 4. A TFLOP is 1,000 GFLOPs.
#
# - **bytes** = parameters × bytes a parameter, and the KV that is read and written
# - **FLOPs** = 2 × parameters × rows, and the products of attention
# - **arithmetic intensity** = FLOPs ÷ bytes, in FLOPs per byte
# - **ridge point** of a machine = FLOP/s ÷ bytes/s, in FLOPs per byte. Below it the step is **memory-bound**.
# - **seconds** = the larger of bytes ÷ (bytes/s) and FLOPs ÷ (FLOP/s): the least time that a step can take
#
# These two ceilings, drawn over FLOPs per byte, are the machine's **roofline**. One exception: in a prefill only the
# last row passes the last matrix, which scores the vocabulary. So it does fewer FLOPs than 2 × parameters × rows.
#
# The cell does it for SmolLM2 at 16 bit on an H100, a large NVIDIA GPU, at its datasheet's peaks. It also shows the code.

# %% id="roofline-by-hand" tags=["path55"]
spec, h100 = MODEL_SPECS["SmolLM2-135M"], GPU_SPECS["H100 SXM"].roofline()
work = {
    "decode, 1 request": (decode_step_bytes(spec, 1, 1), decode_step_flops(spec, 1, 1)),
    "prefill, 1,024 prompt tokens": (prefill_bytes(spec, 1024), prefill_flops(spec, 1024)),
}
table = ["| | Bytes moved | FLOPs | FLOPs per byte | Reading takes | Computing takes | It waits for |"]
table.append("|---" * 7 + "|")
for name, (size, flops) in work.items():
    read_us, compute_us = 1e6 * size / h100.bandwidth_bytes_per_s, 1e6 * flops / h100.flops_per_s
    table.append(f"| {name} | {size / 1e6:,.1f} MB | {flops / 1e9:,.3f} GFLOP | {flops / size:,.1f} | "
                 f"{read_us:.1f} µs | {compute_us:.2f} µs | {'memory' if read_us > compute_us else 'arithmetic'} |")
print(f"Decode: {spec.num_parameters:,} parameters × 2 bytes + {kv_cache_bytes_per_token(spec):,} bytes of KV "
      f"= {decode_step_bytes(spec, 1, 1):,.0f} bytes, and {spec.num_parameters:,} × 2 FLOPs + attention "
      f"= {decode_step_flops(spec, 1, 1):,.0f} FLOPs")
print(f"Ridge point of an H100: {h100.flops_per_s / 1e12:.1f} TFLOP/s ÷ {h100.bandwidth_bytes_per_s / 1e12:.2f} TB/s"
      f" = {h100.ridge_point:.0f} FLOPs per byte")
show("\n".join(table))
source(decode_step_bytes, Roofline.seconds, docstring=False)

# %% id="batch-predict"
predict("01.batch")

# %% id="batch-measure"
sizes = [1, 4, 8, 16, 32, 64]
passes = [{b: decode_s(b, 8) for b in sizes} for _ in range(2)]  # two passes: other programs disturb one of them less
step_s = {b: min(one[b] for one in passes) for b in sizes}  # 8 prompt tokens and a few output tokens: about 10 each
rate = {b: b / step_s[b] for b in sizes}  # output tokens a second
mine = Roofline(measured_matmul_flops(), measured_bandwidth(), machine())
held, width = model.weight_bytes / model.num_parameters, model.dtype.itemsize  # bytes: a weight, a number in the cache
intensity = {b: arithmetic_intensity(spec, b, 10, held, width) for b in sizes}
points = {str(b): (intensity[b], decode_step_flops(spec, b, 10) / step_s[b]) for b in (1, 8, 32)}
flops = prefill_flops(spec, 256)
points["prefill"] = (flops / prefill_bytes(spec, 256, held, width), flops / without[256])

# %% id="batch-reveal"
reveal(
    "01.batch",
    {"actual": rate[8] / rate[1], "longer": step_s[8] / step_s[1], "last": rate[64] / rate[32],
     "ridge": mine.ridge_point, "intensity": intensity[64]},
    curve(sizes, {"measured": list(rate.values()), "if all steps took the same": [b * rate[1] for b in sizes]},
          x_title="requests that decode together", y_title="output tokens a second", height=340, log_x=True, log_y=True,
          sentence=f"8 requests bring {rate[8] / rate[1]:.1f} times the output tokens a second of one request, and 64 "
                   f"bring {rate[64] / rate[1]:.1f} times. If all steps took the same, it would be 8 and 64 times."),
    roofline([mine, h100], points, height=420, sentence="Decode steps for 1, 8 and 32 requests, and a prefill: one "
             "request stands on the left, under the slope, where memory is the limit; more rows move to the right."),
)

# %% [markdown] id="kv-bytes" tags=["path55"]
# ### The price of the cache
#
# The cache saves time and takes memory. For every token, prompt or output, each layer keeps one key and one value for
# each KV head:
#
# **bytes a token** = layers × 2 (K and V) × KV heads × head dimension × bytes a number
#
# This grows with every token of every request. The weights do not grow. So at some number of tokens the cache outweighs
# the model. Where?

# %% id="crossover-predict" tags=["path55"]
predict("01.crossover")

# %% id="crossover-reveal" tags=["path55"]
names = ["SmolLM2-135M", "Qwen3-0.6B", "Llama-2-7B", "Llama-3-8B", "Llama-3-70B", "DeepSeek-V3"]
specs = [MODEL_SPECS[name] for name in names]
equal = kv_weight_crossover_tokens(specs[0])
table = ["| 16 bit | Layers | Numbers kept in a layer | KV bytes a token | Weights, GB | Equal at, tokens |"]
table.append("|---" * 6 + "|")
for s in specs:
    size = kv_cache_bytes_per_token(s)  # layers × numbers kept in a layer × 2 bytes
    table.append(f"| {s.name} | {s.num_layers} | {size // (2 * s.num_layers):,} | {size:,} | "
                 f"{weight_bytes(s) / 1e9:,.2f} | {kv_weight_crossover_tokens(s):,} |")
reveal(
    "01.crossover",
    {"actual": equal, "weights": weight_bytes(specs[0]), "bytes": kv_cache_bytes_per_token(specs[0]),
     "requests": round(equal / 1000)},
    "\n".join(table),
    kv_growth([specs[0], specs[2], specs[3]], height=380,
              sentence="The cache grows with every token; from the dots on it is heavier than the weights."),
)

# %% [markdown] id="calculator-words"
# ### Turn the knobs yourself
#
# The calculator uses the same functions. A request's **context** is all its tokens so far, prompt and output. Three
# things to find:
#
# 1. Keep a batch of 8. From which context on does KV outweigh the weights? Divide first, then drag.
# 2. Choose Llama-3-8B and the shortest context. From which batch on is arithmetic the limit? Make the context longer:
#    where does the point go?
# 3. Choose Llama-2-7B and 4,096 tokens of context. How many requests fit into this expensive card?
#
# Then press **What next?**: it asks what a change will do, and answers with the calculation.

# %% id="calculator"
show(KVCalculatorWidget("SmolLM2-135M", "H100 SXM", batch_size=1, context_tokens=1024))

# %% [markdown] id="loop-3" tags=["path55"]
# ## 3. Three troubles
#
# So memory decides how many requests fit, and many requests are what makes a step worth its read. Now look at how a
# simple server spends memory and steps. A and C run on our engine; B uses its memory manager alone.
#
# **A. Reserved and never used.** The server knows the prompt tokens of a request, not how many output tokens will come.
# It gives each request one unbroken range of slots (a **slot** holds K and V of one token), as long as prompt and output
# may ever be together. That is a **reservation**.

# %% id="reserved-predict" tags=["path55"]
predict("01.reserved")

# %% id="reserved-reveal" tags=["path55"]
PROMPTS = ["The sky is blue because of the", "Once upon"]  # 7 and 2 prompt tokens
rigid = Engine(model, EngineConfig(kv_cache="contiguous", reserve="max", num_blocks=32, max_model_len=128))
for i, n in enumerate((12, 20, 8, 30, 16, 6)):
    rigid.add_request(PROMPTS[i % 2], SamplingParams(max_tokens=n, ignore_eos=True), request_id="ABCDEF"[i])
while rigid.has_unfinished():
    rigid.step()
reveal("01.reserved", {
    "actual": 100 * waste(rigid.trace).used_of_owned,
    "longest": max(request.num_tokens for request in rigid.trace.requests),
    "together": max(len(state.running) for state in rigid.trace.states()),
}, lambda: MemoryMapWidget(rigid.trace, labels=["512 slots, 128 reserved for each request"], step=5))

# %% [markdown] id="hole" tags=["path55"]
# **B. After some requests are done.** Suppose the server knew every length and reserved exactly that. By hand: a pool
# of 28 slots, filled from the left, each request into the first free run of slots that is long enough.
#
# | Move | Slots | Free after it |
# |---|---|---|
# | A takes 7 | 0 to 6 | 21 |
# | B takes 2 | 7 and 8 | 19 |
# | C takes 7 | 9 to 15 | 12 |
# | D takes 7 | 16 to 22 | 5 |
# | A is done, C is done | 0 to 6 and 9 to 15 are free again | 5 + 7 + 7 = 19 |

# %% id="hole-predict" tags=["path55"]
predict("01.hole")

# %% id="hole-reveal" tags=["path55"]
moves = [("place", "A", 7), ("place", "B", 2), ("place", "C", 7), ("place", "D", 7), ("free", "A"), ("free", "C")]
by_hand = allocation_trace([*moves, ("place", "E", 9)], kv_cache="contiguous", num_slots=28)
pool = ContiguousCacheManager(28, reserve="exact")  # the same moves, and then two questions
for name, slots in (("A", 7), ("B", 2), ("C", 7), ("D", 7)):
    pool.allocate(name, slots)
pool.free("A"), pool.free("C")
runs = [len(hole) for hole in pool.holes()]
asked = [f"{needed} slots needed, {pool.num_free_slots} free, longest hole {pool.largest_hole}: "
         f"{'placed' if pool.can_allocate('E', needed) else 'refused'}" for needed in (7, 9)]
reveal(
    "01.hole",
    {"actual": max(runs), "largest": max(runs), "free": sum(runs), "needed": 9, "holes": " + ".join(map(str, runs))},
    "\n\n".join(asked), lambda: MemoryMapWidget(by_hand, labels=["28 slots"], step=6),
)

# %% id="hole-formula"
source(ContiguousCacheManager.allocate)  # the code that placed each request, or refuses it

# %% [markdown] id="idle" tags=["path55"]
# **C. Idle seats.** Memory is not the only thing that is wasted. A server computes its requests in batches, here of two:
# it has two **seats**. With **static batching** a batch starts together, and the next one starts when all of it is done.
#
# A step brings each request in a seat one output token. The first step of a request reads its prompt, 7 or 2 prompt
# tokens here, and brings its first output token as well. So a request with *n* output tokens sits for *n* steps:
#
# **used share** = output tokens ÷ (seats × steps), and **steps** = the longest output of each batch, added up

# %% id="idle-predict" tags=["path55"]
predict("01.idle")

# %% id="idle-reveal" tags=["path55"]
def run_static(outputs):
    engine = Engine(model, EngineConfig(num_blocks=16, scheduling="static", max_num_seqs=2))
    engine.generate(PROMPTS * 2, [SamplingParams(max_tokens=n, ignore_eos=True) for n in outputs])
    return [dict(event.rows) for step in engine.trace.steps for event in step.events if isinstance(event, Schedule)]

loads = [(7, 2, 9, 3), (5, 5, 5, 5), (20, 2, 2, 2)]
runs = {outputs: run_static(outputs) for outputs in loads}
share = {outputs: 100 * sum(map(len, rows)) / (2 * len(rows)) for outputs, rows in runs.items()}
split = {f"outputs {load}": {"brings an output token": used, "idle": 100 - used} for load, used in share.items()}
rows = runs[7, 2, 9, 3]
first = sum(0 in row or 1 in row for row in rows)  # steps in which A or B has a seat
seats = [f"Seat {seat + 1}: `" + "".join(next(("ABCD"[r] for r in row if r % 2 == seat), "·") for row in rows) + "`"
         for seat in (0, 1)]
reveal("01.idle", {
    "actual": share[7, 2, 9, 3], "first": first, "second": len(rows) - first, "steps": len(rows),
    "places": 2 * len(rows), "tokens": sum(map(len, rows)), "equal": share[5, 5, 5, 5], "outlier": share[20, 2, 2, 2],
}, "\n\n".join(["One letter for each step, a dot where the seat is idle:", *seats]), bars(
    split, x_title="% of the seat-steps", percent=True, styles={"brings an output token": "used", "idle": "internal"},
    sentence="A seat is idle as soon as the outputs of a batch differ; with equal outputs nothing is lost."))

# %% [markdown] id="loses" tags=["path55"]
# ## When does it lose?
#
# Nothing here always wins. Two places where it turns:
#
# 1. **The cache** wins nothing for one output token: both ways compute the prompt once. It only takes memory. That is
#    the load of a classifier, or of a model that scores texts.
# 2. **Batching** shares one read of the weights. It cannot share KV: each request reads its own. From the crossover on
#    a step reads more KV than weights, and each doubling of the batch brings less. With *T* tokens a request (prompt
#    and output): **requests at the crossover = crossover tokens ÷ T**. With equal bytes of KV and weights, doubling
#    brings 2 × (1 + 1) ÷ (1 + 2) times, a third more.
#
# Both are calculated, for SmolLM2 at 16 bit; the second on an H100.

# %% id="loses-run" tags=["path55"]
spec, card = MODEL_SPECS["SmolLM2-135M"], GPU_SPECS["H100 SXM"]
print("1. 256 prompt tokens, 1 output token: 256 rows either way, "
      f"and {256 * kv_cache_bytes_per_token(spec) / 1e6:.1f} MB of cache for nothing")
print("2. What doubling the batch brings in output tokens a second (2 is perfect):")
for T in (128, 1024, 4096):
    turn = max(1, round(kv_weight_crossover_tokens(spec) / T))
    step = {b: decode_step_seconds(spec, card, b, T) for b in (1, 2, turn, 2 * turn, 8 * turn, 16 * turn)}
    gain = {b: 2 * step[b] / step[2 * b] for b in (1, turn, 8 * turn)}
    print(f"   {T:5,} tokens each: {kv_weight_crossover_tokens(spec):,} ÷ {T:,} = "
          f"{kv_weight_crossover_tokens(spec) / T:.1f}, about {turn} requests. "
          + ", ".join(f"{b} to {2 * b}: {value:.2f} times" for b, value in gain.items()))

# %% [markdown] id="misconception"
# ## Misconception: "decoding is slow because the chip has too few FLOPs"
#
# If arithmetic were the limit, a step with 4 times the FLOPs would take 4 times as long. You have measured such a step:
# 4 requests instead of 1. And of two cards with the same FLOP/s, neither would be faster. NVIDIA makes such a pair: the
# H100 and the H200. Say what you expect, then run.
#
# The second part tests another one: **"the KV cache is always larger than the weights"**.

# %% id="misconception-run"
flops, size = decode_step_flops(spec, 1, 10), decode_step_bytes(spec, 1, 10, held, width)
more = decode_step_flops(spec, 4, 10) / flops
print(f"{more:.1f} times the FLOPs in a step: {step_s[4] / step_s[1]:.2f} times as long, on {machine()}")
print(f"One request uses {flops / step_s[1] / mine.flops_per_s:.1%} of this machine's FLOP/s "
      f"and {size / step_s[1] / mine.bandwidth_bytes_per_s:.0%} of its bandwidth")
llama, one, other = MODEL_SPECS["Llama-3-8B"], GPU_SPECS["H100 SXM"], GPU_SPECS["H200 SXM"]
ratio = decode_step_seconds(llama, one) / decode_step_seconds(llama, other)
print(f"H200 against H100: {other.roofline().flops_per_s / one.roofline().flops_per_s:.2f} times the FLOP/s, "
      f"{other.bandwidth_bytes_per_s / one.bandwidth_bytes_per_s:.2f} times the bandwidth; "
      f"calculated: {ratio:.2f} times the output tokens a second")
stored, weights = 256 * engine.storage.bytes_per_token(), model.weight_bytes
print(f"\n256 tokens in the cache: {stored / 1e6:.1f} MB. The weights: {weights / 1e6:.0f} MB. "
      f"The cache is {stored / weights:.1%} of them, with {held:.0f} bytes a weight and {width} a number in the cache.")

# %% [markdown] id="self-tests"
# Is your step less than 4 times as long? Then arithmetic alone was not the limit. Compare the two shares: the larger one
# is the nearer limit. Is neither close to 100 %? Then your step also waits for something else: on a CPU, products of
# one row do not keep the memory busy; on a GPU with a small model, the program that hands over the work is too slow.
# Which of cache and weights is larger depends on the number of tokens: you can compute where it turns.
#
# ## Self-tests
#
# Write three short functions. A check names the first wrong value and the likely mistake. `hint("01.rows")` gives the
# next of three hints. Python's integers are enough; do not use `servelab` in your answers.

# %% id="task-rows" tags=["exercise"]
# Task 01.rows (fill, 5 minutes, easy)
def rows_computed(num_prompt_tokens, num_output_tokens, cached):
    """Rows through the network until the last output token is there. rows_computed(7, 5, True) is 11. Returns int."""
    ### BEGIN SOLUTION 01.rows
    if cached:
        return num_prompt_tokens + num_output_tokens - 1
    return sum(num_prompt_tokens + i for i in range(num_output_tokens))
    ### END SOLUTION

# %% id="check-rows" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("01.rows", rows_computed)

# %% id="task-kv-bytes" tags=["exercise"]
# Task 01.kv-bytes (fill, 5 minutes, easy)
def kv_bytes(num_layers, num_kv_heads, head_dim, bytes_per_element, num_prompt_tokens, num_output_tokens):
    """Bytes in the cache when the request ends: of all tokens that passed the network (chapter 00). Returns int."""
    ### BEGIN SOLUTION 01.kv-bytes
    bytes_per_token = num_layers * 2 * num_kv_heads * head_dim * bytes_per_element
    return bytes_per_token * (num_prompt_tokens + num_output_tokens - 1)
    ### END SOLUTION

# %% id="check-kv-bytes" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("01.kv-bytes", kv_bytes)

# %% id="task-hole" tags=["exercise"]
# Task 01.hole (fill, 8 minutes, medium)
def largest_hole(num_slots, taken):
    """The longest run of free slots. `taken`: pairs (start, length) in any order. Returns int.
    largest_hole(28, [(7, 2), (16, 7)]) is 7: the holes have 7, 7 and 5 slots."""
    ### BEGIN SOLUTION 01.hole
    largest, position = 0, 0
    for start, length in sorted(taken):
        largest = max(largest, start - position)
        position = start + length
    return max(largest, num_slots - position)
    ### END SOLUTION

# %% id="check-hole" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("01.hole", largest_hole)

# %% id="quiz"
quiz("01")
own_words("01.slow")

# %% [markdown] id="summary" tags=["path55"]
# ## Summary
#
# - The **KV cache** turns a quadratic number of rows into a linear one. It wins nothing for one output token.
# - At the roofline, a decode step for one request is **memory-bound**: it reads all weights to compute one row. A real
#   step stays above that time. A batch shares the read.
# - The cache takes the same bytes for each prompt and output token. From a number of tokens that you can compute, it
#   outweighs the model, and each request reads its own.
# - Simple servers waste: **A** reserved and never used, **B** holes, **C** idle seats.
#
# **Sources.** Williams et al. 2009, "Roofline" (CACM 52(4)). Pope et al. 2022, "Efficiently Scaling Transformer
# Inference". Kwon et al. 2023, "PagedAttention" (SOSP), section 3: the kinds of waste. GPUs and models: the datasheets
# and configs that `GPU_SPECS` and `MODEL_SPECS` name.
#
# **Next.** Lab 01: KV accounting, and finding the crossover. Chapter 02: A and B, cured by one table. C is chapter 03.
