# %% [markdown] id="title" tags=["path55"]
# # Start here: can I start, and where?
#
# **20 minutes** of core, and up to three primers of 10 minutes · Difficulty: easy · runs on a CPU, no GPU and no network
#
# Large language models are slow and dear to run. This course shows you why, and what the best servers do about it. You
# do not read about it only: you run a real model, measure, predict, change one thing, and look inside.
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
from servelab.widgets import PageTableWidget

goals("00")

# %% [markdown] id="doctor" tags=["path55"]
# ## 1. Is this machine ready?
#
# The doctor looks at everything that the course needs. Each line says *ok*, *warning* or *problem*; the last two come
# with a repair. A laptop without a GPU is fine.

# %% id="doctor-run" tags=["path55"]
doctor.show()

# %% [markdown] id="readiness" tags=["path55"]
# ## 2. Are you ready?
#
# Six questions about what comes before this course. Answer them without looking anything up. Where you miss one, the
# card offers a **primer**: ten minutes, and you know what you need. Nobody else sees your answers.

# %% id="readiness-check" tags=["path55"]
readiness()

# %% [markdown] id="first-answer" tags=["path55"]
# ## 3. A real model answers
#
# The model is SmolLM2-135M-Instruct: small, but a real one, built like its large relatives. The **engine** takes your
# question as a **request**. In each **step** the model computes once, and one more piece of text comes out. Watch it
# write. Then change the question and run the cell again.

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
# Try it. What the model reads and writes is **tokens**.

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
# Every engine keeps a **trace**: what it decided in each step. The widgets replay it. This one shows where the tokens of
# *your* request lie. For each token the model keeps two vectors in every layer, a **key** and a **value**, because later
# tokens look at them. Together they are the **KV cache**. It lives in **blocks** of 16 tokens here.
#
# Step with the arrow keys, play with the space bar, and try **What next?**. Chapter 02 explains every part of it.

# %% id="table-widget" tags=["path55"]
show(PageTableWidget(engine.trace, "A"))

# %% [markdown] id="check" tags=["path55"]
# ## 6. How a chapter works: test yourself
#
# Prompt tokens are given to the model, output tokens come from it. By hand: **A has 7 prompt tokens** and gets 3 output
# tokens.
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
# What you use is what you read: chapters show the engine's own code, never a copy. This is one step of the engine, the
# loop behind every answer. Read the sentence in quotation marks first; the rest becomes clear in chapters 01 to 03.

# %% id="code-step" tags=["path55"]
source(Engine.step)

# %% [markdown] id="wait" tags=["path55"]
# ## 8. Two waits
#
# You wait twice for an answer: until it begins, and while it is written. The first wait is the **TTFT**, time to first
# token. The second is counted per output token: **TPOT**, time per output token. Both have names because different
# things make them long.

# %% id="wait-predict" tags=["path55"]
predict("00.first-token")

# %% id="wait-measure" tags=["path55"]
def two_waits(num_prompt_tokens):
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    fresh = Engine(model, EngineConfig(num_blocks=64, max_num_batched_tokens=512))
    runs = [fresh.generate([list(range(100, 100 + num_prompt_tokens))], params)[0].metrics for _ in range(2)]
    return min(run.ttft_s for run in runs), min(run.tpot_s for run in runs)

lengths = [12, 48, 192, 480]
waits = {length: two_waits(length) for length in lengths}
ttft_s, tpot_s = waits[192]

# %% id="wait-reveal" tags=["path55"]
reveal(
    "00.first-token",
    {"actual": ttft_s / tpot_s, "prompt": 192, "ttft_ms": 1e3 * ttft_s, "tpot_ms": 1e3 * tpot_s},
    f"Measured on {machine()}.",
)

# %% [markdown] id="wait-formula" tags=["path55"]
# The whole wait, in seconds, for *n* output tokens:
#
# **wait = TTFT + (n - 1) × TPOT**
#
# The next cell puts your numbers in. Then it changes one thing, the prompt: 12, 48, 192, 480 prompt tokens.

# %% id="wait-total" tags=["path55"]
print(f"{ttft_s:.3f} s + (16 - 1) x {tpot_s:.3f} s = {ttft_s + 15 * tpot_s:.2f} s, 192 prompt and 16 output tokens")
print(f"Measured on {machine()}")
figure = curve(
    lengths,
    {"TTFT": [1e3 * waits[n][0] for n in lengths], "TPOT": [1e3 * waits[n][1] for n in lengths]},
    x_title="prompt tokens", y_title="milliseconds", log_x=True, log_y=True,
)
sentence = "A longer prompt delays the first output token; each later one hardly notices."
show(figure, sentence, f"Lines on {machine()}: TTFT rises steeply with the prompt tokens, TPOT stays nearly level.")

# %% [markdown] id="loses" tags=["path55"]
# ## When does it lose?
#
# Users feel TTFT when answers are short, and TPOT when they are long. Where is the change? At the number of output tokens
# whose writing takes as long as the first wait: **n = 1 + TTFT / TPOT**. Below it, a faster step for one token
# (speculation, chapter 04) wins little. Above it, a faster prompt wins little.

# %% id="loses-crossover" tags=["path55"]
for length, (first_s, each_s) in waits.items():
    print(f"{length:4} prompt tokens: writing outweighs the first wait from {1 + first_s / each_s:5.1f} output tokens on")
print(f"Measured on {machine()}")

# %% [markdown] id="misconception" tags=["path55"]
# ## A misconception: "twice the prompt, twice the wait for each word"
#
# Many think that a long prompt makes every word slower. Look at the curve you just made: TTFT climbs with the prompt
# tokens, TPOT hardly moves. The old tokens' keys and values are kept, so a step still computes one token. The next cell
# says by how much each wait grew.

# %% id="misconception-run" tags=["path55"]
print(f"From {lengths[0]} to {lengths[-1]} prompt tokens, {lengths[-1] // lengths[0]} times as many:")
print(f"TTFT grew {waits[lengths[-1]][0] / waits[lengths[0]][0]:.1f} times")
print(f"TPOT grew {waits[lengths[-1]][1] / waits[lengths[0]][1]:.1f} times ({machine()})")

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
# Cells of the **55-minute path** carry the tag `path55` (open the right side bar: Common Tools). They run as a set. The
# **full path** takes each chapter with its lab: about an hour each, best on different days.

# %% [markdown] id="map" tags=["path55"]
# ## The map
#
# | | Chapter | You find out | |
# |---|---|---|---|
# | 00 | Start here | whether you can start | ready |
# | 01 | The bottleneck | why decoding is slow and dear | ready |
# | 02 | PagedAttention | how many requests share one memory | ready |
# | 03 | Continuous batching | who gets the freed place | in preparation |
# | 04 | Speculative decoding | how a small model helps a large one | in preparation |
# | 05 | FlashAttention | how to compute attention with fewer reads | in preparation |
# | 06, 07 | GQA; KV-cache quantization | how to keep less | in preparation |
# | 08, 09 | Serving with vLLM; review | all together | in preparation |

# %% [markdown] id="before-after" tags=["path55"]
# **Before this course:** what a transformer is, roughly, and Python. The primers fill the usual gaps: what a KV cache is
# and why a long conversation costs.
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
    watch = lambda layer, q, k, v: kept.update({layer: k.clone()}) or attend(layer, q, k, v)
    model.forward(token_ids, range(len(token_ids)), watch)
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
# The second primer compares reading with computing. Measure both here, and set them against one step of SmolLM2.

# %% id="deeper-bandwidth-run" tags=["deeper"]
from servelab.costs import decode_step_bytes, decode_step_flops
from servelab.device import measured_bandwidth, measured_matmul_flops

size = model.dtype.itemsize
read_ms = 1e3 * decode_step_bytes(model.spec, 1, 200, size, size) / measured_bandwidth()
compute_ms = 1e3 * decode_step_flops(model.spec, 1, 200) / measured_matmul_flops()
print(f"{machine()}: {measured_bandwidth() / 1e9:.0f} GB/s, {measured_matmul_flops() / 1e9:.0f} GFLOP/s")
print(f"One output token: reading takes {read_ms:.1f} ms at least, computing {compute_ms:.1f} ms")

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
# - An answer has two waits: TTFT grows with the prompt, TPOT hardly does.
#
# **Sources:** Ben Allal et al., *SmolLM2* (2025); Vaswani et al., *Attention Is All You Need* (2017); Ainslie et al.,
# *GQA* (2023).
#
# **Next:** chapter 01, the bottleneck.
