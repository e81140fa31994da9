# %% [markdown] id="title" tags=["path55"]
# # Start here: can I start, and where?
#
# **25 minutes** of core, and up to three primers of 10 minutes · Difficulty: easy · runs on a CPU, no GPU and no network
#
# Large language models are slow and costly to run. This course shows you why, and what the best servers do about it.
# You do more than read: you run a real model, predict, measure, change one thing, and look inside.
#
# In the next minutes you check this machine, let the model answer you, meet the tools of all chapters, and find out
# what you should read first.

# %% id="set-up" tags=["path55"]
from servelab.course import check, glossary, goals, hint, machine, own_words, predict, progress, quiz, readiness, reveal
from servelab.course import show, source
from servelab.device import doctor
from servelab.engine import Engine, EngineConfig
from servelab.figures import curve
from servelab.model import load_model
from servelab.sampling import SamplingParams
from servelab.trace import Schedule
from servelab.widgets import PageTableWidget

goals("00")

# %% [markdown] id="doctor" tags=["path55"]
# ## 1. Is this machine ready?
#
# The doctor looks at everything that the course needs. Each line says *ok*, *warning* or *problem*; the last two come
# with a repair. A laptop without a GPU is fine. The speeds in the processor's line are the subject of a primer below.

# %% id="doctor-run" tags=["path55"]
doctor.show()

# %% [markdown] id="readiness" tags=["path55"]
# ## 2. Are you ready?
#
# Six questions about what comes before this course. Answer them without looking anything up. Where you miss one, the
# card offers a **primer**: ten minutes, and you know what you need. Nobody else sees your answers.
#
# K and V are short for key and value. A FLOP is one multiplication or one addition, a GFLOP a billion of them.

# %% id="readiness-check" tags=["path55"]
readiness()

# %% [markdown] id="first-answer" tags=["path55"]
# ## 3. A real model answers
#
# The model is SmolLM2-135M-Instruct: small, but a real one, built like its large relatives. The **engine** is the
# program that runs it. Your question and its settings are a **request**. In each **step** the model computes once, and
# one more piece of text comes out. Here `max_tokens` ends the answer after 40 pieces at the latest. `num_blocks` is the
# engine's memory; you see it in section 5.
#
# Watch the model write. Then change the question and run the cell again.

# %% id="first-answer-run" tags=["path55"]
model = load_model("smollm2-135m", progress=False)
engine = Engine(model, EngineConfig(num_blocks=12))
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
engine.add_request(model.tokenizer.chat(question), SamplingParams(max_tokens=40), request_id="A")
while engine.has_unfinished():
    for output in engine.step():
        print(output.delta_text, end="", flush=True)

# %% [markdown] id="tokens" tags=["path55"]
# ## 4. How a chapter works: predict first
#
# Before a result you are asked what you expect: a number, or a choice. Commit it, or skip. The result stays folded until
# you do. Being wrong is the point: the gap is what you remember. Your predictions stay on this machine.
#
# Try it. What the model reads and writes is **tokens**: pieces of text from a fixed list. Tokens that you give it are
# **prompt tokens**. Tokens that it writes are **output tokens**. This course never mixes the two.

# %% id="tokens-predict" tags=["path55"]
predict("00.tokens")

# %% id="tokens-count" tags=["path55"]
ids = model.tokenizer.encode("Unbelievably, the cache is full!")
pieces = [model.tokenizer.token_text(token) for token in ids]
first = next(i for i, piece in enumerate(pieces) if "," in piece)

# %% id="tokens-reveal" tags=["path55"]
reveal(
    "00.tokens",
    {"actual": len(ids), "first": first, "vocabulary": model.spec.vocab_size},
    "Its tokens: " + " · ".join(f"`{piece}`" for piece in pieces),
)

# %% [markdown] id="table" tags=["path55"]
# ## 5. How a chapter works: look inside your own run
#
# Every engine keeps a **trace**: what it decided in each step. The widgets replay it, this one for *your* request. For
# each token the model keeps a **key** and a **value** in every layer, because later tokens look at them. Together they
# are the **KV cache**. It is cut into **blocks** of 16 **slots**; a slot holds one token's K and V. The **pool** is all
# blocks there are, and the **block table** lists which of them your request has. **Logical blocks** are your text in
# order, **physical blocks** the places in the pool. You see more prompt tokens than you typed: a chat model is given
# the roles and a standard opening too.
#
# Step with the arrow keys; the space bar plays. Then press **What next?** and **Next decision**: the replay stops, asks
# where the next token goes, and gives the reason. Chapter 02 explains every part.

# %% id="table-widget" tags=["path55"]
show(PageTableWidget(engine.trace, "A"))

# %% [markdown] id="check" tags=["path55"]
# ## 6. How a chapter works: test yourself
#
# By hand: **request A has 7 prompt tokens** and gets 3 output tokens. A token **passes the network** when all layers
# compute it, and then its K and V are stored.
#
# | Step | Tokens that pass the network | Stored after it | Comes out |
# |---|---|---|---|
# | 1 | A1 to A7, the prompt | 7 | output token A8 |
# | 2 | A8 | 8 | output token A9 |
# | 3 | A9 | 9 | output token A10, the last |
#
# Now write it for any request. A self-test never shows the answer: it shows *your* first wrong value, and what
# probably went wrong. `hint("00.stored")` helps in three stages: a question, what always holds, a plan in words.

# %% id="task-stored" tags=["exercise", "path55"]
# Task 00.stored (fill, 3 minutes, easy)
def tokens_stored(num_prompt_tokens, num_output_tokens):
    """How many tokens have their K and V stored when the request ends. Returns int."""
    ### BEGIN SOLUTION 00.stored
    return num_prompt_tokens + num_output_tokens - 1
    ### END SOLUTION

# %% id="check-stored" tags=["self-test", "path55"]
# NBVAL_CHECK_OUTPUT
check("00.stored", tokens_stored)

# %% [markdown] id="code" tags=["path55"]
# ## 7. How a chapter works: read the code
#
# Chapters show the engine's own code, never a copy. You called this function in section 3, once for each token of the
# answer. Two lines matter now: `schedule` decides which tokens pass the network in this step, and `_compute` sends them
# through. The rest keeps the engine in order when something fails; skip it today.

# %% id="code-step" tags=["path55"]
source(Engine.step)

# %% [markdown] id="wait" tags=["path55"]
# ## 8. Two waits
#
# You wait twice for an answer: until it begins, and while it is written. The first wait is the **TTFT**, time to first
# token. The second is counted per output token: **TPOT**, time per output token after the first. Both have names
# because different things make them long. TTFT begins when your request arrives: where it has to wait for its turn,
# that counts too.

# %% [markdown] id="wait-formula" tags=["path55"]
# The whole wait, in seconds, for *n* output tokens:
#
# **wait = TTFT + (n - 1) × TPOT**
#
# You measure both, for prompts of 3 to 480 prompt tokens, and keep the best of three runs. What the prompts say plays no
# part, so they are made-up token numbers. `ignore_eos` lets the model write on when it would end its answer.

# %% id="wait-predict" tags=["path55"]
predict("00.first-token")

# %% id="wait-measure" tags=["path55"]
def one_run(num_prompt_tokens, first_id):
    fresh = Engine(model, EngineConfig(num_blocks=64, max_num_batched_tokens=512))  # a prompt passes in one step
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    return fresh.generate([list(range(first_id, first_id + num_prompt_tokens))], params)[0].metrics

lengths = [3, 12, 48, 192, 480]
runs = [{length: one_run(length, first_id) for length in lengths} for first_id in (1000, 2000, 3000)]
ttft_s = {length: min(run[length].ttft_s for run in runs) for length in lengths}
tpot_s = {length: min(run[length].tpot_s for run in runs) for length in lengths}

# %% id="wait-reveal" tags=["path55"]
first_s, each_s = ttft_s[192], tpot_s[192]
reveal(
    "00.first-token",
    {"actual": first_s / each_s, "prompt": 192, "ttft_ms": 1e3 * first_s, "tpot_ms": 1e3 * each_s},
    f"The formula, for 8 output tokens: {first_s:.3f} s + (8 - 1) × {each_s:.3f} s = {first_s + 7 * each_s:.2f} s. "
    f"For 500 output tokens, at the same pace: {first_s + 499 * each_s:.0f} s. Measured on {machine()}.",
)

# %% [markdown] id="longer" tags=["path55"]
# ### Change one thing: the number of prompt tokens
#
# A chapter gives you a **knob**: one thing to change while all else stays. Here it is the number of prompt tokens. You
# turn it up to 480, and down to 3, until it no longer helps.

# %% id="longer-predict" tags=["path55"]
predict("00.longer-prompt")

# %% id="wait-total" tags=["path55"]
low, short, long = lengths[0], lengths[1], lengths[-1]
ms = {name: [1e3 * seconds[n] for n in lengths] for name, seconds in (("TTFT", ttft_s), ("TPOT", tpot_s))}
figure = curve(
    lengths, ms, x_title="prompt tokens", y_title="milliseconds", log_x=True, log_y=True,
    sentence="A longer prompt delays the first output token far more than each later one.",
    alt=f"Lines on {machine()}: TTFT begins near TPOT and rises with the prompt tokens; TPOT rises far less.",
)
values = {"actual": tpot_s[long] / tpot_s[short], "growth": ttft_s[long] / ttft_s[short], "low": low, "short": short}
values |= {"long": long, "low_ms": 1e3 * ttft_s[low], "short_ms": 1e3 * ttft_s[short], "low_tpot_ms": 1e3 * tpot_s[low]}
reveal("00.longer-prompt", values, figure)

# %% [markdown] id="misconception" tags=["path55"]
# ### A misconception: "each word makes the model read the whole prompt again"
#
# It sounds right, since every output token depends on the whole prompt. Then each step would compute all tokens so far.
# Count in the trace of *your* request how many tokens passed the network in each step, and set it beside the curve.
#
# If the answer ended by itself, you count one output token more than you saw: the model ends its answer with a token
# that has no text.

# %% id="misconception-run" tags=["path55"]
rows = [event.rows[0][1] for step in engine.trace.steps for event in step.events if isinstance(event, Schedule)]
record = engine.trace.requests[0]
print(f"Your request: {record.num_prompt_tokens} prompt tokens, {record.num_output_tokens} output tokens")
print(f"Tokens that passed the network, step by step: {rows}")
print(f"Together: {sum(rows)} tokens whose K and V were stored once, and then only looked at")

# %% [markdown] id="loses" tags=["path55"]
# ## When does it lose?
#
# A remedy for one wait loses its effect where the other wait is the longer one. The two are equal where
# (n - 1) × TPOT = TTFT, that is at **n = 1 + TTFT / TPOT** output tokens. With fewer, most of the wait is the TTFT:
# faster writing helps little. With more, most of it is writing: a faster start helps little.

# %% id="crossover-predict" tags=["path55"]
predict("00.crossover")

# %% id="loses-crossover" tags=["path55"]
crossover = {n: 1 + ttft_s[n] / tpot_s[n] for n in lengths}
table = ["| Prompt tokens | TTFT | TPOT | Equal at |", "|---|---|---|---|"]
table += [
    f"| {n} | {1e3 * ttft_s[n]:,.0f} ms | {1e3 * tpot_s[n]:,.0f} ms | {crossover[n]:.1f} output tokens |" for n in lengths
]
values = {"actual": crossover[long], "low": low, "low_tokens": crossover[low], "long": long}
values |= {"ttft_ms": 1e3 * ttft_s[long], "tpot_ms": 1e3 * tpot_s[long]}
reveal("00.crossover", values, "\n".join(table))

# %% [markdown] id="quiz" tags=["path55"]
# ## Quiz
#
# Each question asks how sure you are, too. Right and unsure is worth a second look; wrong and certain even more.

# %% id="quiz-run" tags=["path55"]
quiz("00")

# %% id="words" tags=["path55"]
own_words("00.two-waits")

# %% [markdown] id="paths" tags=["path55"]
# ## Two ways through the course
#
# | Part of the 55-minute path | Minutes | Where |
# |---|---|---|
# | Where the bottleneck is: KV cache and wasted memory | 12 | chapter 01, its path cells |
# | The first two answers: PagedAttention, continuous batching | 15 | chapters 02 and 03 |
# | The other three: speculation, FlashAttention and GQA, quantization | 18 | chapters 04 to 07 |
# | Test yourself and say it aloud | 10 | chapter 09 |
#
# Cells of the **55-minute path** carry the tag `path55` (open the right side bar: Common Tools). They
# run without the other cells. The 55 minutes begin after this chapter; today you can walk them through chapter 02.
# The **full path** takes each chapter with its lab: about an hour each, on different days.

# %% [markdown] id="map" tags=["path55"]
# ## The map
#
# | Number | Chapter | You find out | State |
# |---|---|---|---|
# | 00 | Start here | whether you can start | ready |
# | 01 | The bottleneck | why each output token is slow and costly | ready |
# | 02 | PagedAttention | how many requests share one memory | ready |
# | 03 | Continuous batching | who gets the freed place | in preparation |
# | 04 | Speculative decoding | how a small model helps a large one | in preparation |
# | 05 | FlashAttention | how to compute attention with fewer reads | in preparation |
# | 06, 07 | GQA; KV-cache quantization | how to keep less | in preparation |
# | 08, 09 | Serving with vLLM; review | all together | in preparation |

# %% [markdown] id="before-after" tags=["path55"]
# **Before this course:** what a transformer is, roughly, and Python. The primers fill the usual gaps: what attention
# keeps, what a step of the model waits for, and how many numbers one token costs.
#
# **After it:** you know how a model is served. How it learns to call tools and to plan (agents) is the next subject.
#
# **What is kept:** your notebooks are in `workspace`, and an update never overwrites what you wrote there.

# %% id="progress" tags=["path55"]
progress()

# %% [markdown] id="deeper-attention" tags=["deeper"]
# ## Deeper: old keys never change, on the real model
#
# The first primer computes attention on three tokens by hand. Here you check its conclusion on SmolLM2. Read 5 tokens
# and keep the keys of the last layer; read the same 5 and 3 more; compare the first 5 keys.

# %% id="deeper-attention-run" tags=["deeper"]
from servelab.ops import PackedCausalAttention

def last_layer_keys(token_ids):
    kept, attend = {}, PackedCausalAttention([len(token_ids)])
    model.forward(token_ids, range(len(token_ids)),
                  lambda layer, q, k, v: kept.update({layer: k.clone()}) or attend(layer, q, k, v))
    return kept[model.config.num_layers - 1]

short, longer = last_layer_keys(ids[:5]), last_layer_keys(ids[:8])
difference = (short - longer[:5]).abs().max().item()
print(f"Keys of the last layer: {tuple(short.shape)} and {tuple(longer.shape)} (tokens, KV heads, head dimension)")
print(f"Largest difference in the first 5 tokens: {difference:.1e}, of values up to {short.abs().max().item():.0f}")

# %% [markdown] id="deeper-attention-why" tags=["deeper"]
# What is left is rounding: a larger matrix product adds its numbers in another order. The keys are the same.

# %% [markdown] id="deeper-bandwidth" tags=["deeper"]
# ## Deeper: the two clocks of this machine
#
# The second primer compares reading with computing. Measure both here, and set them against the TPOT that you measured
# after 192 prompt tokens. The two are the least times that a step can take; a real step stays above them.

# %% id="deeper-bandwidth-run" tags=["deeper"]
from servelab.costs import decode_step_bytes, decode_step_flops
from servelab.device import measured_bandwidth, measured_matmul_flops

size = model.dtype.itemsize
read_ms = 1e3 * decode_step_bytes(model.spec, 1, 192, size, size) / measured_bandwidth()
compute_ms = 1e3 * decode_step_flops(model.spec, 1, 192) / measured_matmul_flops()
print(f"{machine()}: {measured_bandwidth() / 1e9:.0f} GB/s, {measured_matmul_flops() / 1e9:.0f} GFLOP/s")
print(f"One output token: reading takes {read_ms:.1f} ms, computing {compute_ms:.1f} ms")
print(f"TPOT, measured before: {1e3 * tpot_s[192]:.1f} ms, {1e3 * tpot_s[192] / read_ms:.1f} times the reading")

# %% [markdown] id="deeper-heads" tags=["deeper"]
# ## Deeper: query heads and KV heads of the real model

# %% id="deeper-heads-run" tags=["deeper"]
spec = model.spec
kept = 2 * spec.num_kv_heads * spec.head_dim
print(f"{spec.num_query_heads} query heads, {spec.num_kv_heads} KV heads, head dimension {spec.head_dim}")
print(f"Kept for a token in a layer: 2 x {spec.num_kv_heads} x {spec.head_dim} = {kept} numbers")
print(f"In {spec.num_layers} layers, {size} bytes each: {spec.num_layers * kept * size:,} bytes a token")

# %% id="words-list"
glossary()

# %% [markdown] id="summary" tags=["path55"]
# ## Summary
#
# - This machine runs a real model, and the engine's trace shows what happened inside.
# - You predict, run, explain the gap, change one thing, and test yourself.
# - An answer has two waits: TTFT grows with the prompt tokens, TPOT far less.
#
# **Sources:** Ben Allal et al., *SmolLM2* (2025); Vaswani et al., *Attention Is All You Need* (2017); Ainslie et al.,
# *GQA* (2023).
#
# **Next:** chapter 01, the bottleneck.
