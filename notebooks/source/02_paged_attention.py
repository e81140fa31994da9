# %% [markdown] id="title" tags=["path55"]
# # PagedAttention: how do many requests share one memory?
#
# **60 minutes** of core · Difficulty: medium · runs on a CPU, no GPU needed · comes after chapter 01
#
# In chapter 01 a server kept one unbroken range of memory for each request. It reserved for the longest answer there
# could be, and most of that stayed empty. In this chapter you take the range apart. You place tokens by hand, watch the
# engine do the same on a real model, find out what that does to the output tokens, and count how many more requests
# fit. Then you look for the place where it stops paying.
#
# Three new ideas: the **block table**, **internal fragmentation**, **capacity**. What is marked "Deeper" can be skipped.

# %% id="set-up" tags=["path55"]
import time
from itertools import accumulate, pairwise

import torch
from servelab.cache import ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.costs import MODEL_SPECS, blocks_needed, kv_cache_bytes_per_token
from servelab.costs import paged_waste, requests_that_fit, workload
from servelab.course import check, goals, hint, machine, own_words
from servelab.course import predict, quiz, reveal, show, source
from servelab.engine import Engine, EngineConfig, allocation_trace
from servelab.figures import bars, curve
from servelab.model import load_model
from servelab.ops import AttentionBatch, CachedAttention
from servelab.ops.attention import SequenceRead
from servelab.sampling import SamplingParams
from servelab.trace import waste
from servelab.widgets import MemoryMapWidget, PageTableWidget

# float32, 4 bytes a number, so that rounding hardly plays a part
model = load_model("smollm2-135m", dtype=torch.float32, progress=False)
goals("02")

# %% id="retrieval" tags=["path55"]
quiz("02.retrieval")

# %% [markdown] id="loop-1" tags=["path55"]
# ## 1. A table instead of a range
#
# A server knows a request's **prompt tokens** when it arrives. How many **output tokens** will follow, nobody knows. One
# unbroken range must not run out, so the server reserves the most a request may ever have. Measure what that costs:
# four requests with 6 output tokens each, a pool of 512 slots, 256 of them reserved for each request.

# %% id="pain" tags=["path55"]
PROMPTS = ["The sky is blue because of the", "Once upon", "A list of three fruits:"]

config = EngineConfig(kv_cache="contiguous", num_blocks=32, block_size=16, max_model_len=256)
rigid = Engine(model, config)
rigid.generate([*PROMPTS, "My name is"], SamplingParams(max_tokens=6, ignore_eos=True))
requests = rigid.trace.requests
together = max(len(state.running) for state in rigid.trace.states())

print("Prompt tokens:", [request.num_prompt_tokens for request in requests])
print("Output tokens:", [request.num_output_tokens for request in requests])
print(f"Asked at once: {len(requests)} requests. Ran at once: {together}.")
print(f"Of the slots that requests owned, {waste(rigid.trace).used_of_owned:.1%} held a token (mean of all steps).")
print(f"Measured on {machine()}")

# %% [markdown] id="by-hand" tags=["path55"]
# ### Words, and the example by hand
#
# - **Slot**: the place of one token's K and V. **Block**: a fixed number of slots side by side, here 4.
# - **Logical block**: the block as the request counts it. Its tokens 0 to 3 are in logical block 0, 4 to 7 in block 1.
# - **Physical block**: the block as the pool counts it, where the bytes really are.
# - **Block table**: one list a request. Entry *i* says which physical block holds logical block *i*.
#
# Two requests share a pool of 7 blocks: **A with 7 prompt tokens, B with 2**. The pool hands out the block that has been
# free for longest, so a new pool gives 0, 1, 2, ... Take a pencil: for each token, divide its position by 4. The quotient
# is the logical block, the remainder is the **offset** in it. Look the logical block up in the table. Then compare.

# %% id="by-hand-table" tags=["path55"]
by_hand = KVCacheManager(num_blocks=7, block_size=4)
rows = [
    "| Token | Position | ÷ 4: logical block | Remainder: offset | Block table | Physical block | Slot |",
    "|:-:" * 7 + "|",
]
for request, num_tokens in (("A", 7), ("B", 2)):
    by_hand.allocate(request, num_tokens)
    table = by_hand.block_table(request)
    for position in range(num_tokens):
        index, offset = divmod(position, 4)
        slot = f"{table[index]} × 4 + {offset} = {by_hand.slot(request, position)}"
        row = (f"{request}{position + 1}", position, index, offset, table, table[index], slot)
        rows.append("| " + " | ".join(map(str, row)) + " |")
show("\n".join(rows))

# %% id="ninth-predict" tags=["path55"]
predict("02.ninth")

# %% id="ninth-run" tags=["path55"]
engine = Engine(model, EngineConfig(block_size=4, num_blocks=7))
longer, shorter = (SamplingParams(max_tokens=n, ignore_eos=True) for n in (8, 6))
engine.add_request("The sky is blue because of the", longer, request_id="A")
engine.add_request("Once upon", shorter, request_id="B")
while engine.has_unfinished():
    engine.step()
    engine.cache.check_integrity()

stored = [state.requests[0].num_computed_tokens for state in engine.trace.states()]
ninth_step = stored.index(9)  # the step after which A has 9 tokens
table = engine.trace.state_at(ninth_step).requests[0].block_table
picture = PageTableWidget(engine.trace, "A", step=ninth_step)
reveal("02.ninth", {"actual": table[2], "table": str(table)}, picture)

# %% [markdown] id="formulas" tags=["path55"]
# ### Two formulas, and you as the block manager
#
# With *b* slots a block, position *p* counted from 0, and *T* tokens stored (// divides and drops the remainder, % is
# the remainder):
#
# - **slot** = table[ *p* // *b* ] × *b* + *p* % *b*  (block number × slots a block + slots)
# - **blocks** = *T* ÷ *b*, rounded up  (tokens ÷ tokens a block)
#
# The next cell evaluates both for A's 9th token and shows the code that the engine ran. In the widget after it, press
# **Next decision**: you point at the block that takes the next token, A's 8th, A's 9th, and later ones, and the run says
# why. Space plays, the arrow keys step. Then choose request B, and do the same for B.

# %% id="formulas-evaluated" tags=["path55"]
position = 8  # A's 9th token
block, offset = table[position // 4], position % 4
print(f"slot: table[8 // 4] = table[2] = block {block}; {block} × 4 + {offset} = slot {block * 4 + offset}")
print(f"blocks: 9 tokens ÷ 4 tokens a block = {9 / 4}, rounded up {blocks_needed(9, 4)} blocks;")
print(f"{blocks_needed(9, 4)} × 4 - 9 = {paged_waste(9, 4)} of their slots are empty")
source(KVCacheManager.allocate, KVCacheManager.slot, docstring=False)

# %% id="page-table-widget" tags=["path55"]
show(PageTableWidget(engine.trace, "A"))

# %% [markdown] id="analogy" tags=["path55"]
# ### Like an operating system, and where it is not
#
# | Virtual memory | PagedAttention |
# |---|---|
# | page of a process; offset in the page | logical block of a request; position % block size |
# | page frame; page table | physical block; block table |
# | a page is given when it is first touched | a block is given when a token needs it |
# | unused end of the last page | empty slots of the last block: **internal fragmentation** |
# | page fault, the signal that a page is not there | **no counterpart:** the engine takes the block before the step |
# | TLB, the processor's cache of translations | **no counterpart:** the **kernel** (the program that computes attention on the GPU) reads the table itself |
# | protection of one process from another | **no counterpart:** a wrong entry reads another user's keys, unnoticed |
# | swapping to disk | a request that must make room gives up its blocks and computes their K and V again later |

# %% [markdown] id="loop-2"
# ## 2. Does the model notice?
#
# A's table skips a block. In a busy pool nearly every table does. That looks dangerous: attention was written for keys
# in a row. So you run three prompts (7, 2 and 6 prompt tokens, 12 output tokens each) in three memory layouts:
# one unbroken range a request, blocks of 16, and blocks of 4. Sampling is greedy: the most probable token, always. The
# model computes in **float32**, 4 bytes a number, so that rounding hardly plays a part.

# %% id="same-predict"
predict("02.same-tokens")

# %% id="same-run"
configs = {
    "contiguous": EngineConfig(kv_cache="contiguous", max_model_len=64, num_blocks=12, block_size=16),
    "blocks of 16": EngineConfig(num_blocks=12, block_size=16),
    "blocks of 4": EngineConfig(num_blocks=48, block_size=4),
}
engines = {name: Engine(model, config) for name, config in configs.items()}
params = SamplingParams(max_tokens=12, ignore_eos=True)
outputs = {name: each.generate(PROMPTS, params) for name, each in engines.items()}

tokens = {name: [t for output in each for t in output.token_ids] for name, each in outputs.items()}
different = sum(len(set(three)) > 1 for three in zip(*tokens.values(), strict=True))
last = engines["blocks of 4"].trace.state_at(11)  # what each request holds in the 12th step
tables = [request.block_table for request in last.requests]
jumps = sum(b != a + 1 for table in tables for a, b in pairwise(table))
rows = ["| Prompt | Block table, blocks of 4 | Output |", "|:--|:--|:--|"]
for prompt, table, output in zip(PROMPTS, tables, outputs["blocks of 4"], strict=True):
    rows.append(f"| {prompt} | {table} | {' '.join(output.text.split())} |")
reveal("02.same-tokens", {"actual": different, "places": jumps}, "\n".join(rows))

# %% [markdown] id="gather"
# ### By hand: read A's keys through its table
#
# Attention needs a request's keys in the order of its tokens. With a table that is one indexing operation, a **gather**:
# take the physical blocks in the order of the table, put them behind each other, cut at the number of tokens.
#
# The least it must read: bytes a step = tokens stored × bytes a token (all layers) + table entries × 4 bytes an entry ×
# layers. So the bytes are not the price. What can cost time is to read many short pieces.
#
# The next cell gathers for layer 0, beside the run that kept everything in a row. Then it shows the code for a request
# that is computed alone, such as a prefill: a range of slots is read as it lies, a list of slots is gathered, and the
# attention after it is the same. Decodes through tables are gathered in the same way, several requests at once.

# %% id="gather-run"
n, table = last.requests[0].num_computed_tokens, tables[0]
start = engines["contiguous"].trace.state_at(11).requests[0].reservation[0]
in_a_row = engines["contiguous"].storage.keys(0).flatten(0, 1)[start : start + n]  # [n, KV heads, head dim]
gathered = engines["blocks of 4"].storage.keys(0)[table].flatten(0, 1)[:n]

for p in (0, 3, 4, 7, 8, n - 1):
    one, other = gathered[p, 0, 0], in_a_row[p, 0, 0]
    print(f"position {p:2}: block {table[p // 4]:2}, offset {p % 4}: {one:+.6f}; in a row: {other:+.6f}")
print(f"All {gathered.numel():,} numbers equal, bit for bit: {torch.equal(gathered, in_a_row)}")
layers = model.spec.num_layers
kv_bytes, entry_bytes = n * model.kv_bytes_per_token, len(table) * 4 * layers
print(f"A step reads {n} tokens × {model.kv_bytes_per_token:,} bytes (float32) = {kv_bytes:,} bytes of K and V,")
print(f"and {len(table)} entries × 4 bytes × {layers} layers = {entry_bytes:,} bytes of the table:")
print(f"{entry_bytes / kv_bytes:.3%} more")
source(SequenceRead.__call__)

# %% [markdown] id="loop-3"
# ## 3. How many requests fit
#
# Chapter 01 ended one story badly. A pool has 28 slots. A, B, C and D take 7, 2, 7 and 7 of them, for prompt and output
# together; A and C finish. 19 slots are free, but the longest hole has 7, and E needs 9. That is **external
# fragmentation**.
#
# Now two pools get the same moves. The second has blocks of 4: A, B, C, D take 2 + 1 + 2 + 2 = 7 blocks, so it is full.
# Take a pencil: how many blocks are free when A and C are gone, and how many does E need? You stand before E's
# arrival. Press **Next decision**, say where E is admitted, and read why. The arrow keys step back through the moves.

# %% id="memory-map-widget"
moves = [("place", "A", 7), ("place", "B", 2), ("place", "C", 7), ("place", "D", 7)]
moves += [("free", "A"), ("free", "C"), ("place", "E", 9)]
ranges = allocation_trace(moves, kv_cache="contiguous", num_slots=28)
paged = allocation_trace(moves, kv_cache="paged", num_slots=28, block_size=4)
show(MemoryMapWidget(ranges, paged, labels=("One range a request", "Blocks of 4"), step=5))

# %% [markdown] id="capacity" tags=["path55"]
# ### Capacity
#
# **Capacity** is how many requests a pool holds at the same time. With *T* tokens a request (prompt and output), *R*
# slots reserved for each, and *b* slots a block:
#
# - **slots** = pool bytes ÷ bytes a token, rounded down
# - **with a reservation**: slots ÷ *R*, rounded down (slots ÷ slots a request = requests)
# - **with blocks**: (slots ÷ *b*, rounded down) ÷ (*T* ÷ *b*, rounded up), rounded down (blocks ÷ blocks a request)
#
# The last output token is never stored (chapter 00). We count it all the same: one slot to be safe.
#
# In chapter 01, E needed 9 slots and found no hole. In blocks of 4 any three free ones would do: external fragmentation
# is gone. What is left is **internal fragmentation** (internal waste): slots that a request owns and never uses. A
# reservation has it as well. With blocks it is the end of the last one, so always less than one block a request.

# %% id="capacity-predict" tags=["path55"]
predict("02.capacity")

# %% id="capacity-reveal" tags=["path55"]
POOL_BYTES = 512 * 2**20
token_bytes = kv_cache_bytes_per_token(MODEL_SPECS["SmolLM2-135M"])  # 16 bit
slots, per_request = POOL_BYTES // token_bytes, blocks_needed(300, 16)
reserved = requests_that_fit(POOL_BYTES, token_bytes, 300, reserved_tokens=2048)
fit = requests_that_fit(POOL_BYTES, token_bytes, 300, block_size=16)
reveal("02.capacity", {
    "actual": fit, "gain": fit / reserved, "slots": slots, "blocks": slots // 16, "tokens": 300, "reserve": 2048,
    "per_request": per_request, "owned": per_request * 16, "wasted": paged_waste(300, 16),
}, f"{POOL_BYTES:,} bytes ÷ {token_bytes:,} bytes a token = {slots:,} slots. Reserved: {slots:,} slots ÷ 2,048 slots a "
   f"request = {reserved} requests. In blocks: {slots // 16:,} blocks ÷ {per_request} blocks a request = {fit} requests.")

# %% [markdown] id="workload"
# ### Lengths as they come
#
# Real requests are not all alike: most are short, a few are very long. The course keeps one workload for all chapters:
# 500 made-up requests with the shape of measured ones. They have 300 tokens on average, about half prompt and half
# output, and 2,048 at most. You fill the 512 MiB pool with them, in order of arrival, until the next one does not fit.
# Each is at its full length: the worst moment for blocks, because a request that still decodes owns even fewer.
#
# Three ways to hand out the memory: reserve 2,048 for each; reserve exactly prompt + output, as if somebody knew the
# output tokens in advance; blocks of 16.

# %% id="waste-predict"
predict("02.waste")

# %% id="waste-reveal"
lengths = [request.num_tokens for request in workload()]
pools = {
    "reserve 2,048": ContiguousCacheManager(slots, reserve="max", max_model_len=2048),
    "reserve exactly": ContiguousCacheManager(slots, reserve="exact"),
    "blocks of 16": KVCacheManager(slots // 16, 16),
}
filled, share = {}, {}
for name, pool in pools.items():
    while pool.can_allocate(str(len(pool.request_ids)), lengths[len(pool.request_ids)]):
        pool.allocate(str(len(pool.request_ids)), lengths[len(pool.request_ids)])
    inside, free = lengths[: len(pool.request_ids)], pool.num_free * pool.block_size
    empty = pool.num_slots - free - sum(inside)
    filled[f"{name}: {len(inside)} requests"] = {"used": sum(inside), "internal waste": empty, "free": free}
    share[name] = 100 * empty / (empty + sum(inside))
numbers = {"mean_waste": empty / len(inside), "mean_tokens": sum(inside) / len(inside), "paged": len(inside)}
numbers |= {"reserved_waste": share["reserve 2,048"], "exact": len(pools["reserve exactly"].request_ids)}
sentence = "What a reservation leaves empty, blocks give to other requests."
figure = bars(filled, x_title="slots of the pool", styles={"internal waste": "internal"}, sentence=sentence)
reveal("02.waste", {"actual": share["blocks of 16"], **numbers}, figure)

# %% [markdown] id="length-knob"
# ### Turn one knob: the length of a request
#
# You saw 300 tokens (prompt and output). Think first: what happens to the gain with 64 tokens a request, and with
# 2,048? The reservation stays at 2,048. Then run the cell. Change `reserve` to 4,096 and run it again: where does the
# right end of the curve stop now, and why?

# %% id="length-knob-run"
reserve = 2048
tokens_each = [64, 128, 300, 600, 1200, 2048]
by_range = [requests_that_fit(POOL_BYTES, token_bytes, t, reserved_tokens=reserve) for t in tokens_each]
by_block = [requests_that_fit(POOL_BYTES, token_bytes, t, block_size=16) for t in tokens_each]
gains = [b / r for b, r in zip(by_block, by_range, strict=True)]
figure = curve(
    tokens_each, {"gain": gains}, x_title="tokens a request (prompt + output)",
    y_title=f"requests in blocks of 16 ÷ requests that reserve {reserve:,}", log_x=True,
    sentence=f"The gain falls from {gains[0]:.0f} times at {tokens_each[0]} tokens to {gains[-1]:.1f} times at "
    f"{tokens_each[-1]:,}: paging wins back what was reserved and not used, and nothing else.",
)
show(figure)

# %% [markdown] id="loop-4"
# **With 4,096 reserved,** 5 requests fit instead of 11. Blocks hold 11 requests of 2,048 tokens as before, so the curve
# stops at 11 ÷ 5 = 2.2 times. Nobody is longer than 2,048, so half of each reservation stays empty: that is won back.
#
# ## 4. The block size is a trade
#
# Small blocks waste little. So why not blocks of 1? Each block is an entry in a table, and the engine must write and
# read it. And a GPU reads one long run of memory faster than many short ones. Large blocks keep tables short, and
# waste. vLLM, the engine that PagedAttention comes from, takes 16 on a GPU. What would 256 cost here?

# %% id="block-size-predict"
predict("02.block-size")

# %% id="block-size-reveal"
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
blocks = {size: [blocks_needed(length, size) for length in lengths] for size in sizes}
entries = {size: sum(blocks[size]) / len(lengths) for size in sizes}  # a request
empty = {size: paged_waste(lengths, size) / len(lengths) for size in sizes}  # slots a request
wasted = {size: 100 * empty[size] / (entries[size] * size) for size in sizes}
held = {size: sum(total <= slots // size for total in accumulate(blocks[size])) for size in sizes}
finding = "{}: {} with blocks of 1, {:.1f} with 16, {:.1f} with 512."
figures = [
    curve(
        sizes, {y_title: list(values.values())}, x_title="slots a block", y_title=y_title, log_x=True, height=320,
        sentence=finding.format(short, round(values[1]), values[16], values[512]),
    )
    for y_title, short, values in (
        ("Empty slots, % of those owned", "Larger blocks waste more, in %", wasted),
        ("Table entries a request", "Larger blocks need fewer table entries a request", entries),
    )
]
numbers = {"mean_waste": empty[256], "fit": held[256], "fit_16": held[16]}
reveal("02.block-size", {"actual": wasted[256], **numbers}, *figures)

# %% [markdown] id="deeper-reads" tags=["deeper"]
# ### Deeper: what many short reads cost here
#
# Counting entries is not timing. This cell gathers K of 2,048 tokens of SmolLM2, 30 layers, block by block in a mixed
# order, and takes the best of 20 runs. Every block size moves the same bytes; only the number of pieces differs.
#
# Do not expect the rule of the GPU here. On a CPU the line may rise, fall or zigzag: other programs, caches and how the
# pieces are shared among the cores all weigh as much as their number. So a block size is measured where it will run.

# %% id="deeper-reads-run" tags=["deeper"]
timed = {}
for size in (1, 4, 16, 64, 256):
    storage = KVStorage(30, 2048 // size, size, 3, 64)
    order = torch.randperm(2048 // size, generator=torch.Generator().manual_seed(0))
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for layer in range(30):
            storage.keys(layer).index_select(0, order)
        best = min(best, time.perf_counter() - begin)
    timed[size] = 1000 * best
sentence = f"Blocks of 1: {timed[1]:.2f} ms, of 16: {timed[16]:.2f} ms, of 256: {timed[256]:.2f} ms ({machine()})."
show(curve(
    list(timed), {"gather of K, 30 layers": list(timed.values())}, x_title="slots a block",
    y_title="ms for K of 30 layers", log_x=True, height=320, sentence=sentence,
))

# %% [markdown] id="when-it-loses"
# ## When does it lose?
#
# Paging wins back memory that was reserved and not used, or lost in holes. So look where there is none of it:
#
# 1. **Lengths known and equal.** Reserve exactly 300 slots for each request of 300 tokens: nothing is wasted, and a hole
#    that one request leaves fits the next. Blocks of 16 still waste the end of the last block.
# 2. **Requests that use their reservation.** From how many tokens a request on do blocks hold no more requests than a
#    server that reserves 2,048 slots for each?
# 3. **One request, or memory to spare.** Nobody waits for memory, so more capacity buys nothing. What may be left is a
#    price for the gather. You measure one request that decodes, attention of 30 layers. Our two ways are different
#    programs, so on a CPU the ratio may come out on either side of 1. Near 1 means: nothing won. On a GPU the authors of
#    PagedAttention measured 20 to 26 % more time for the attention kernel, the program that computes attention there.

# %% id="when-it-loses-run"
exact = requests_that_fit(POOL_BYTES, token_bytes, 300)
even = next(t for t in range(1, 2049) if requests_that_fit(POOL_BYTES, token_bytes, t, block_size=16) <= reserved)
print(f"1. Equal and known, 300 tokens: {exact} requests with exact ranges, {fit} with blocks of 16.")
print(f"2. From {even:,} tokens a request on, both hold {reserved} requests.")

n, order = 1024, torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
q, k = torch.randn(1, 9, 64), torch.randn(1, 3, 64)  # one new token: 9 query heads, 3 KV heads
in_range = CachedAttention(AttentionBatch([1], [n], [-1], starts=[0]), KVStorage(30, n, 1, 3, 64))
in_blocks = CachedAttention(AttentionBatch([1], [n], [-1], [order], block_size=16), KVStorage(30, 64, 16, 3, 64))
def attention_ms(attend):
    begin = time.perf_counter()
    for layer in range(30):
        attend(layer, q, k, k)
    return 1000 * (time.perf_counter() - begin)
taken = [(attention_ms(in_range), attention_ms(in_blocks)) for _ in range(20)]  # in turn, best of 20
row_ms, table_ms = min(pair[0] for pair in taken), min(pair[1] for pair in taken)
print(f"3. One request, {n:,} stored tokens: {row_ms:.2f} ms a step from one range,")
print(f"   {table_ms:.2f} ms through a table, {table_ms / row_ms:.1f} times ({machine()})")

# %% [markdown] id="misconception"
# ## Misconception: "PagedAttention is a new attention algorithm"
#
# If it were, its result would depend on the blocks. Test it. Take one query and A's real keys and values of layer 0.
# Compute attention with PyTorch's own function, four times: from the unbroken range; through A's table; through A's
# table with two full blocks exchanged; through a table with one block of B's in it. Before you look: which of the last
# three differ from the first? (B is the second prompt here.)

# %% id="misconception-run"
query = torch.randn(1, 9, 1, 64, generator=torch.Generator().manual_seed(0))
count, attention = in_a_row.shape[0], torch.nn.functional.scaled_dot_product_attention
def attend(table, cache):
    k, v = (x[table].flatten(0, 1)[:count].transpose(0, 1)[None] for x in (cache.keys(0), cache.values(0)))
    return attention(query, k, v, enable_gqa=True)

a, b = tables[0], tables[1]
unbroken = attend(list(range(start, start + count)), engines["contiguous"].storage)
cases = {
    "A's table": a,
    "two full blocks of A exchanged": [a[1], a[0], *a[2:]],
    "B's first block in A's table": [b[0], *a[1:]],
}
rows = ["| Read through | Table | Largest difference |", "|:--|:--|:--|"]
for name, table in cases.items():
    difference = (attend(table, engines["blocks of 4"].storage) - unbroken).abs().max()
    rows.append(f"| {name} | {table} | {difference:.8f} |")
rows.append(f"\nAttention's outputs are up to {unbroken.abs().max():.2f} in size.")
show("\n".join(rows))

# %% [markdown] id="misconception-answer"
# The formula does not know blocks. Attention is a weighted **sum** over stored tokens, and each key carries its own
# position. So exchanging two full blocks changes how the sum rounds, at most. A block of another request changes the
# result itself. The table must name the right blocks, and the last one must be cut at the right token: that is
# bookkeeping, not mathematics.
#
# ## Self-tests
#
# Write three short functions. A check names the first wrong value and the likely mistake. `hint("02.slot")` gives the
# next of three hints. Python's integers are enough; do not use `servelab` in your answers.

# %% id="task-slot" tags=["exercise"]
# Task 02.slot (fill, 5 minutes, easy)
def slot_of(block_table, position, block_size):
    """The slot where the token at `position` (counted from 0) lies. slot_of([2, 4], 5, 4) is 17. Returns int."""
    ### BEGIN SOLUTION 02.slot
    index, offset = divmod(position, block_size)
    return block_table[index] * block_size + offset
    ### END SOLUTION

# %% id="check-slot" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("02.slot", slot_of)

# %% id="task-blocks" tags=["exercise"]
# Task 02.blocks (fill, 3 minutes, easy)
def blocks_for(num_tokens, block_size):
    """How many blocks a request with `num_tokens` stored tokens owns. blocks_for(7, 4) is 2. Returns int."""
    ### BEGIN SOLUTION 02.blocks
    return (num_tokens + block_size - 1) // block_size
    ### END SOLUTION

# %% id="check-blocks" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("02.blocks", blocks_for)

# %% id="task-waste" tags=["exercise"]
# Task 02.waste (fill, 5 minutes, medium)
def internal_waste(lengths, block_size):
    """Empty slots in the blocks of several requests, together. internal_waste([7], 4) is 1. Returns int."""
    ### BEGIN SOLUTION 02.waste
    return sum(-length % block_size for length in lengths)
    ### END SOLUTION

# %% id="check-waste" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("02.waste", internal_waste)

# %% id="quiz"
quiz("02")

# %% id="own-words"
own_words("02.paging")

# %% [markdown] id="summary" tags=["path55"]
# ## Summary
#
# - A **block table** maps a request's logical blocks to physical ones. Neighbouring tokens may lie anywhere in the pool.
# - A new block comes only when a token needs it, so nothing is reserved ahead, and any free block will do.
# - What blocks waste is the end of each last one: **internal fragmentation**, less than one block a request.
# - **Capacity** grows by what the reservation wasted. Equal known lengths, used reservations or spare memory: no gain.
# - The mathematics of attention stays. Its reads go through the table. What that costs depends on the program and the
#   machine.
#
# **Sources.** Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention" (SOSP): the idea;
# figures 2 and 3 for the amounts and kinds of waste; section 7.1 for a kernel that takes 20 to 26 % more time than
# FasterTransformer's. Prabhu et al. 2024, "vAttention": the same gain without a table in the kernel.
#
# **Next.** Lab 02: write the block manager, find the fault at the block boundary. Chapter 03: who gets the freed seat.
