# %% [markdown] id="title" tags=["path55"]
# # PagedAttention: how do many requests share one memory?
#
# **60 minutes** of core · Difficulty: medium · runs on a CPU, no GPU needed · comes after chapter 01
#
# In chapter 01 a server kept one unbroken range of memory for each request. It reserved for the longest answer there
# could be, and most of that stayed empty. In this chapter you take the range apart. You place tokens by hand, watch the
# engine do the same on a real model, find out what that does to the output tokens, and count how many more requests
# fit. Then you let requests share what they have in common, and look for the places where all this stops paying.
#
# Three new ideas: the **block table**, **capacity**, the **shared block**. What is marked "Deeper" can be skipped.

# %% id="set-up" tags=["path55"]
import time
from itertools import accumulate, pairwise

import torch
from servelab.cache import ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.cache.prefix import PrefixIndex
from servelab.costs import MODEL_SPECS, blocks_needed, kv_cache_bytes_per_token
from servelab.costs import paged_waste, requests_that_fit, workload
from servelab.course import check, goals, hint, machine, own_words
from servelab.course import predict, quiz, reveal, show, source
from servelab.engine import Engine, EngineConfig, allocation_trace
from servelab.figures import bars, curve
from servelab.model import load_model
from servelab.ops import AttentionBatch, CachedAttention
from servelab.ops.read import SequenceRead
from servelab.sampling import SamplingParams
from servelab.trace import Copy, waste
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
# The next cell evaluates both for A's 9th token and shows the code that the engine ran. In the widget below it, press
# **Next decision**: you point at the block that takes the next token, A's 8th, A's 9th, and later ones, and the run says
# why. Space plays, the arrow keys step. Then choose request B, and do the same for B.

# %% id="formulas-evaluated" tags=["path55"]
position = 8  # A's 9th token
block, offset = table[position // 4], position % 4
print(f"slot: table[8 // 4] = table[2] = block {block}; {block} × 4 + {offset} = slot {block * 4 + offset}")
print(f"blocks: 9 tokens ÷ 4 tokens a block = {9 / 4}, rounded up {blocks_needed(9, 4)} blocks;")
print(f"{blocks_needed(9, 4)} × 4 - 9 = {paged_waste(9, 4)} of their slots are empty")
source(KVCacheManager.allocate, KVCacheManager.slot, docstring=False)
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
start = engines["contiguous"].trace.state_at(11).requests[0].reservation[0]  # where A's unbroken range begins
jumps = sum(b != a + 1 for table in tables for a, b in pairwise(table))
rows = ["| Prompt | Block table, blocks of 4 | Output |", "|:--|:--|:--|"]
for prompt, table, output in zip(PROMPTS, tables, outputs["blocks of 4"], strict=True):
    rows.append(f"| {prompt} | {table} | {' '.join(output.text.split())} |")
reveal("02.same-tokens", {"actual": different, "places": jumps}, "\n".join(rows))

# %% [markdown] id="gather" tags=["deeper"]
# ### Deeper, by hand: read A's keys through its table
#
# Attention needs a request's keys in the order of its tokens. With a table that is one indexing operation, a **gather**:
# take the physical blocks in the order of the table, put them behind each other, cut at the number of tokens.
#
# The least it must read: bytes a step = tokens stored × bytes a token (all layers) + table entries × 4 bytes an entry ×
# layers. So the bytes are not the price. What can cost time is to read many short pieces.
#
# The next cell gathers for layer 0, beside the run that kept everything in a row. Then it shows how plain PyTorch reads
# one request: a range of slots as it lies, a list of slots through a gather; the attention after it is the same. A
# compiled kernel does without the copy. How it reads is a part of its own, at the end of section 3.

# %% id="gather-run" tags=["deeper"]
n, table = last.requests[0].num_computed_tokens, tables[0]
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

# %% [markdown] id="misconception"
# ### Misconception: "PagedAttention is a new attention algorithm"
#
# If it were a new formula, its result could depend on where the blocks lie. Test it. Take one query and A's real keys and values of layer 0.
# Compute attention with PyTorch's own function, four times: from the unbroken range; through A's table; through A's
# table with two full blocks exchanged; through a table with one block of B's in it. Before you look: which of the last
# three differ from the first? (B is the second prompt here.)

# %% id="misconception-run"
query = torch.randn(1, 9, 1, 64, generator=torch.Generator().manual_seed(0))
count, attention = last.requests[0].num_computed_tokens, torch.nn.functional.scaled_dot_product_attention
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

# %% [markdown] id="loop-3"
# The formula does not know blocks: attention is a weighted **sum** over stored tokens, and each key carries its own
# position. Exchanging two full blocks changes how the sum rounds, at most. A block of another request changes the
# result itself. The table must name the right blocks: that is bookkeeping, not mathematics.
#
# ## 3. How many requests fit
#
# Chapter 01 ended one story badly. A pool has 28 slots. A, B, C and D take 7, 2, 7 and 7, for prompt and output together;
# A and C finish. 19 slots are free, but the longest hole has 7, and E needs 9. That is **external fragmentation**.
#
# Two pools get the same moves. In the second, with blocks of 4, A to D take 2 + 1 + 2 + 2 = 7 blocks: it is full. With a
# pencil: how many are free when A and C are gone, how many does E need? Press **Next decision**, and say where E gets in.

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

# %% [markdown] id="deeper-block-size" tags=["deeper"]
# ### Deeper: the block size is a trade
#
# Small blocks waste little. So why not blocks of 1? Each block is an entry in a table, and the engine must write and
# read it. And a GPU reads one long run of memory faster than many short ones. Large blocks keep tables short, and
# waste. vLLM, the engine that PagedAttention comes from, takes 16 on a GPU. What would 256 cost here?

# %% id="block-size-predict" tags=["deeper"]
predict("02.block-size")

# %% id="block-size-reveal" tags=["deeper"]
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
blocks = {size: [blocks_needed(length, size) for length in lengths] for size in sizes}
entries = {size: sum(blocks[size]) / len(lengths) for size in sizes}  # a request
empty = {size: paged_waste(lengths, size) / len(lengths) for size in sizes}  # slots a request
wasted = {size: 100 * empty[size] / (entries[size] * size) for size in sizes}
held = {size: sum(total <= slots // size for total in accumulate(blocks[size])) for size in sizes}
figure = curve(
    sizes, {"empty slots": list(wasted.values())}, x_title="slots a block", y_title="Empty slots, % of those owned",
    log_x=True, height=320,
    sentence=f"Larger blocks waste more: {wasted[16]:.1f} % with 16 slots, {wasted[512]:.1f} % with 512. They need fewer "
    f"table entries a request: {entries[1]:.0f} with 1 slot, {entries[16]:.1f} with 16, {entries[512]:.1f} with 512.",
)
numbers = {"mean_waste": empty[256], "fit": held[256], "fit_16": held[16]}
reveal("02.block-size", {"actual": wasted[256], **numbers}, figure)

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
print(f"Gather of K, 30 layers ({machine()}):")
print("; ".join(f"blocks of {size}: {best:.2f} ms" for size, best in timed.items()))

# %% [markdown] id="deeper-price" tags=["deeper"]
# ### Deeper: what a table costs one request
#
# One request alone wins nothing by blocks. What is left is the price of reading through a table. Below, one request
# decodes, attention of 30 layers. On a CPU the ratio may come out on either side of 1: caches and other programs weigh as
# much as the table. On a GPU the authors of PagedAttention measured 20 to 26 % more time for the attention kernel.

# %% id="deeper-price-run" tags=["deeper"]
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
print(f"One request, {n:,} stored tokens: {row_ms:.2f} ms a step from one range,")
print(f"{table_ms:.2f} ms through a table, {table_ms / row_ms:.1f} times ({machine()})")

# %% [markdown] id="kernel" tags=["deeper"]
# ### Deeper: the kernel reads through the table
#
# The gather of section 2 makes a copy. So each byte of K and V is read, written into the copy, and read again, in every
# layer of every step. A kernel that reads through the table needs no copy. Measure both on this machine: the same
# request, the same 1,024 stored tokens. Where the engine has no compiled kernel, the second gathers too, and says so.

# %% id="kernel-pain" tags=["deeper"]
from servelab.course import watched
from servelab.figures import kernel_access
from servelab.kernels import paged_attention
from servelab.kernels.inspect import observe, observe_kernel
from servelab.kernels.language import tl, triton
from servelab.kernels.paged_attention import find_slots

batch = AttentionBatch([1], [n], [-1], [order], block_size=16)
gathering = CachedAttention(batch, in_blocks.storage, "naive")
taken = [(attention_ms(gathering), attention_ms(in_blocks)) for _ in range(20)]  # in turn, best of 20
copy_ms, walk_ms = min(pair[0] for pair in taken), min(pair[1] for pair in taken)
kv_bytes = 30 * 2 * n * 3 * 64 * 4
print(f"K and V of {n:,} tokens, 30 layers: {kv_bytes:,} bytes. With a copy, moved: 3 × that, {3 * kv_bytes:,} bytes.")
print(f"{copy_ms:.2f} ms a step with a copy, {walk_ms:.2f} ms without: {copy_ms / walk_ms:.1f} times.")
print(f"A compiled kernel read through the table: {in_blocks.compiled is not None}. Measured on {machine()}")

# %% [markdown] id="kernel-by-hand" tags=["deeper"]
# ### Deeper: which program reads what, by hand
#
# A GPU's kernel starts many **programs** side by side. Each has a number, its **program id**, and computes its part of
# the result. None is handed A's keys in a row: each finds them through the table. A has 9 stored tokens and the table
# [0, 1, 3]. With a pencil, for each token: *position* ÷ 4 is the entry of the table, the remainder is the slot in it.
#
# - tokens 0 to 3: entry 0 says block 0, slots 0, 1, 2, 3
# - tokens 4 to 7: entry 1 says block 1, slots 4, 5, 6, 7
# - token 8: entry 2 says block 3, 3 × 4 + 0 = slot 12
#
# You need no GPU to see it: Triton, the language of the kernel, has an **interpreter**. It runs program after program on
# the CPU, and here each load is written down: which program, which slot, how many bytes.

# %% id="kernel-predict" tags=["deeper"]
predict("02.kernel-reads")

# %% id="kernel-reveal" tags=["deeper"]
table = engine.trace.state_at(ninth_step).requests[0].block_table  # A of section 1, with 9 tokens
def decode(keys, values, table, num_tokens):
    """Watch the programs of one decode: 9 query heads, one request."""
    arguments = torch.randn(1, 9, 64), keys, values, torch.tensor([table]).int(), torch.tensor([num_tokens]).int()
    return observe(paged_attention, *arguments, num_splits=1)
seen = watched("02.reads", decode, engine.storage.keys(0), engine.storage.values(0), table, 9)
stored_bytes = 9 * 3 * 64 * 4
picture = kernel_access(
    seen, "keys", slot_elements=3 * 64, num_slots=28, block_size=4, names={0: "A", 1: "A", 2: "B", 3: "A"},
    programs=[f"program of KV head {g}" for g in range(3)],
    sentence=f"Each program reads A's 9 slots through the table, its own head of each: {stored_bytes // 3:,} bytes of K.",
)
times = seen.loaded_bytes("keys") / stored_bytes
numbers = {"programs": len(seen.programs), "bytes": seen.loaded_bytes("keys") + seen.loaded_bytes("values")}
reveal("02.kernel-reads", {"actual": times, **numbers}, picture)

# %% [markdown] id="kernel-formula" tags=["deeper"]
# With *S* tokens stored, *G* KV heads, *D* numbers a head and *e* bytes a number, all programs together ask for
#
# - **bytes** = 2 × *S* × *G* × *D* × *e*  (K and V × tokens × KV heads × numbers a head × bytes a number)
#
# These bytes are **requested**. A GPU's caches may answer a part of them, so that less comes from its memory.

# %% id="kernel-source" tags=["deeper"]
print(f"2 × 9 tokens × 3 KV heads × 64 numbers × 4 bytes = {2 * stored_bytes:,} bytes of K and V;")
print(f"and {seen.loaded_bytes('block_tables')} bytes of the table: each program looks up the block of every token")
source(find_slots)

# %% [markdown] id="kernel-knob" tags=["deeper"]
# ### Deeper: change one thing, the KV heads
#
# Nine KV heads (**MHA**, one for each query head), three (**GQA**), one (**MQA**, all share it). What happens to the bytes?
# And what happens to the number of programs, when a GPU such as the H100 has 132 processors that all want work?

# %% id="kernel-knob-run" tags=["deeper"]
rows, programs = {}, {}
for heads in (9, 3, 1):
    cache = torch.randn(2, 25, 4, heads, 64)
    seen = watched(f"02.heads-{heads}", decode, *cache, list(range(25)), 100)
    kv = seen.loaded_bytes("keys") + seen.loaded_bytes("values")
    programs[heads] = len(seen.programs)
    rows[f"KV heads: {heads}, programs: {programs[heads]}"] = {"K and V": kv, "table, queries": seen.loaded_bytes() - kv}
show(bars(
    rows, x_title="bytes requested, one request of 100 tokens, one layer",
    sentence="Fewer KV heads ask for fewer bytes, and leave fewer programs to do the work.",
))
for heads, number in programs.items():
    print(f"KV heads: {heads}. Requests until each of 132 processors has a program: {132 / number:.0f}")

# %% [markdown] id="kernel-live" tags=["deeper"]
# Here sharing turns against itself: one request with one KV head keeps one processor busy. So real kernels also split a
# long context among programs, and **merge** the parts. That writes and reads the parts once more.
#
# ### Deeper: the same two ways on a GPU
#
# One layer, 64 requests, 4,096 stored tokens each, 32 query heads on 8 KV heads of 128 numbers. The copy moves each byte
# three times, the kernel once. How many times longer will the copy take? Where there is no GPU, the cell shows what one
# measured, once one has.

# %% id="kernel-gpu" tags=["deeper", "gpu"]
from torch.nn.functional import scaled_dot_product_attention
from servelab.course import on_gpu
from servelab.device import Clock
from servelab.kernels import paged_attention
from servelab.kernels.inspect import PagedInputs

def with_copy(inputs):
    """Gather the blocks of each request into a row, then attend."""
    k, v = (x[inputs.tables.long()].flatten(1, 2).transpose(1, 2) for x in (inputs.keys, inputs.values))
    return scaled_dot_product_attention(inputs.q[:, :, None], k, v, enable_gqa=True)
def measure():
    inputs, clock = PagedInputs([4096] * 64, heads=(32, 8), head_dim=128, device="cuda"), Clock("cuda")
    through_table = clock.median_ms(lambda: paged_attention(*inputs.arguments, **inputs.options))
    return {"with a copy": clock.median_ms(lambda: with_copy(inputs)), "through the table": through_table}
on_gpu("02.decode", "ms", measure)

# %% [markdown] id="kernel-fault" tags=["deeper"]
# ### Deeper: find the wrong index
#
# Below is a kernel of three lines. It copies A's keys into a row, one program a token. One number in it is wrong. On a
# GPU it would read whatever lies there, or end the process. Here its programs are watched. Read the report: which
# program, which line, which element. Then mend the line and run the cell again.

# %% id="kernel-fault-run" tags=["deeper"]
@triton.jit
def copy_keys(keys, table, out, D: tl.constexpr):
    token, numbers = tl.program_id(0), tl.arange(0, D)
    slot = tl.load(table + token // 4) * 16 + token % 4
    tl.store(out + token * D + numbers, tl.load(keys + slot * D + numbers))

keys = engine.storage.keys(0)[:, :, 0].contiguous()  # KV head 0: 7 blocks of 4 slots, 64 numbers each
arguments = keys, torch.tensor(table).int(), torch.empty(9, 64)
seen = watched("02.fault", observe_kernel, copy_keys, (9,), *arguments, D=64)
print(f"{len(seen.programs)} programs, {len(seen.faults)} reported.", *seen.faults, sep="\n")
slots = [access.ranges[0][0] // 64 for access in seen.accesses("load", "keys")]
print(f"Slots that the programs read: {slots}")

# %% [markdown] id="kernel-fault-end" tags=["deeper"]
# The report names one program, and four more are as wrong: those of block 1 read slots 16 to 19, which are inside the
# pool and hold somebody else's keys. A watched address catches what leaves the memory. What stays inside and is wrong,
# only a comparison with a **reference** finds: the same result, computed plainly. Every kernel here has one.

# %% [markdown] id="loop-4"
# ## 4. Two requests, one block
#
# A table can name any block. So two tables can name the same one. When would that be right?
#
# A service puts the same **system prompt** in front of each question: its rules, its prices. Here it has 1,000 tokens,
# and each question 10. Those are prompt tokens, and the user waits for them: the time to the first output token
# (**TTFT**) holds the whole prefill. Measure it for two questions, one after the other, in an engine that forgets.

# %% id="again-pain"
prices = "".join(f"Article {n}: {n * 37 % 90 + 10} euros, {n % 4} left.\n" for n in range(80))
system = model.tokenizer.encode("You answer for a shop. These are its prices.\n" + prices)[:1000]
asked = ("\nWhat does article 7 cost? It costs", "\nHow many of article 9 are left?")
first, second = ([*system, *model.tokenizer.encode(question)] for question in asked)
four = SamplingParams(max_tokens=4, ignore_eos=True)

forgetful = Engine(model, EngineConfig(block_size=16, num_blocks=200, prefix_caching=False))
alone = [forgetful.generate([prompt], four)[0] for prompt in (first, second)]
for prompt, output in zip((first, second), alone, strict=True):
    print(f"{len(prompt):,} prompt tokens: first output token after {output.metrics.ttft_s:.2f} s")
print(f"Of them the same in both: the first {len(system):,}. Measured on {machine()}")

# %% [markdown] id="share-by-hand"
# ### By hand: what may be found
#
# K and V of a token depend on it and on the tokens **before** it, on nothing behind it. So where two prompts begin with
# the same tokens, the keys and values there are the same, up to rounding. **Prefix caching** keeps them to be found:
#
# - Only **full blocks** are found: a block with room will still be written to.
# - Only **from the first token on**: a block is found when *all* tokens up to its end are the same.
# - A block counts the tables that name it: its **reference count**. At 0 nobody owns it. A full block can still be found
#   then, until the pool hands it out again and its content is lost: **eviction**.
#
# A and B are back. Then C comes: 7 prompt tokens, the first 5 are A's. Which blocks are in C's table? Then compare. When
# a request finds at least one block, that is a **hit**.

# %% id="share-by-hand-table"
by_hand = KVCacheManager(num_blocks=7, block_size=4, prefix_caching=True)
prompts = {"A": [1, 2, 3, 4, 5, 6, 7], "B": [8, 9], "C": [1, 2, 3, 4, 5, 10, 11]}
rows = ["| Arrives | Its tokens | Found | New blocks | Block table | Reference counts |", "|:--|:--|:-:|:-:|:-:|:--|"]
for request, prompt in prompts.items():
    found = by_hand.match_prefix(prompt)
    by_hand.share(request, found)
    new = by_hand.allocate(request, len(prompt))
    by_hand.cache_full_blocks(request, prompt)  # from now on others find its full blocks
    counts = [f"block {b}: {by_hand.pool.reference_count(b)}" for b in range(4)]
    row = (request, prompt, found, new, by_hand.block_table(request), ", ".join(counts))
    rows.append("| " + " | ".join(map(str, row)) + " |")
show("\n".join(rows))

# %% id="hit-predict"
predict("02.hit")

# %% id="hit-run"
caching = Engine(model, EngineConfig(block_size=16, num_blocks=200, prefix_caching=True))
kept = [caching.generate([prompt], four)[0] for prompt in (first, second)]
both = zip(kept, alone, strict=True)
same = sum(a == b for one, two in both for a, b in zip(one.token_ids, two.token_ids, strict=True))
times = [output.metrics for output in kept]
taken = [metrics.num_cached_tokens for metrics in times]
figure = bars(
    {
        f"question {number}: TTFT {each.ttft_s:.2f} s": {"computed": len(first) - hit, "taken over": hit}
        for number, (each, hit) in enumerate(zip(times, taken, strict=True), start=1)
    },
    x_title="prompt tokens", styles={"computed": "used", "taken over": "cached"},
    sentence=f"What one request has computed, the next one that begins alike does not compute again: {taken[1]} tokens.",
)
before_s, after_s = alone[1].metrics.ttft_s, times[1].ttft_s
numbers = {"machine": machine(), "before_s": before_s, "after_s": after_s, "ratio": before_s / after_s, "same": same}
reveal("02.hit", {"actual": len(second) - taken[1], **numbers}, figure)

# %% id="copy-predict"
predict("02.copy")

# %% id="copy-run"
engine = Engine(model, EngineConfig(block_size=4, num_blocks=9))
two = SamplingParams(n=2, max_tokens=6, temperature=1.0, seed=0, ignore_eos=True)
few = SamplingParams(max_tokens=4, ignore_eos=True)
engine.add_request(PROMPTS[0], two, request_id="A")
engine.add_request(PROMPTS[1], few, request_id="B")
engine.step(), engine.step()
engine.add_request("The sky is blue because water is", few, request_id="C")
while engine.has_unfinished():
    engine.step()

trace = engine.trace
copies = [(step, each) for step, record in enumerate(trace.steps) for each in record.events if isinstance(each, Copy)]
step, copy = copies[0]
writer, other = copy.request, 1 - copy.request  # the two answers are requests 0 and 1 of the trace
tables = [trace.state_at(step).requests[request].block_table for request in (writer, other)]
names = {"writer": trace.requests[writer].request_id, "other": trace.requests[other].request_id}
numbers = {"source": copy.source, "block": copy.block, "bytes": 4 * trace.kv_bytes_per_token}
numbers |= {"alone": 2 * blocks_needed(8, 4), "tables": f"{tables[0]} and {tables[1]}", "held": len({*tables[0], *tables[1]})}
picture = PageTableWidget(trace, names["writer"], step=step)
reveal("02.copy", {"actual": len(copies), **names, **numbers}, picture)

# %% [markdown] id="share-formulas"
# ### Two formulas, and the code
#
# *P* prompt tokens; an earlier request has **stored** the same first *m*, and none of them is evicted; *b* slots a block:
#
# - **tokens taken over** = *b* × min( *m* // *b*, (*P* - 1) // *b* )  (tokens a block × blocks)
#
# *P* - 1, because one token must be computed: without it there are no **logits**, the scores of all tokens, from which
# the first output token is chosen. With *n* answers to one prompt, and *O* output tokens stored for each, at least 1:
#
# - **blocks** = *P* // *b* + *n* × ( (*P* + *O*) ÷ *b* rounded up - *P* // *b* )  (blocks shared + blocks of their own)
#
# The next cell evaluates both. `match` looks up one full block after another: each is found by a **hash**, one number
# made from its tokens and the hash of the block in front. Then the tokens are compared. An `Entry` is such a block. Below
# is your run. C came later; D continues A's conversation. Press **Next decision** for C, then choose D.

# %% id="share-widget"
taken_of_c = 4 * min(5 // 4, (7 - 1) // 4)
print(f"C, by hand: 4 × min(5 // 4, 6 // 4) = {taken_of_c} tokens taken over")
shared, each = 1000 // 16, blocks_needed(1000 + 100, 16)
print(f"8 answers of 100 tokens to a prompt of 1,000, blocks of 16: {shared} + 8 × ({each} - {shared}) =", end=" ")
print(f"{shared + 8 * (each - shared)} blocks; without sharing {8 * each}")
source(PrefixIndex.match, KVCacheManager.copy_on_write, docstring=False)

history = trace.requests[0].prompt_token_ids + trace.requests[0].output_token_ids
engine.add_request([*history, *model.tokenizer.encode(" But at night")], few, request_id="D")
while engine.has_unfinished():
    engine.step()
engine.cache.check_integrity()
show(PageTableWidget(trace, "C", step=1), picture=PageTableWidget(trace, "C"))

# %% [markdown] id="when-it-loses"
# ## When does it lose?
#
# Paging wins back memory that was reserved and not used. Sharing wins back work that was done, and memory that would hold
# the same twice. Look where there is none.
#
# 1. **Lengths known and equal.** Reserve exactly 300 slots for each request of 300 tokens: nothing is wasted, and blocks
#    of 16 still waste the end of the last one. With **memory to spare**, more capacity buys nothing.
# 2. **Reservations that get used.** The reservation is 2,048. Think: what is the gain with 64 tokens a request, with
#    2,048? Then run. Change `reserve` to 4,096 and run again: where does the right end of the curve stop now, and why?
# 3. **Prompts that part early.** Misconception: "the text is in the cache, so it is a hit". Change one token, the first
#    or one in the middle: how much is computed again? A short TTFT also betrays that somebody asked the same before. So
#    a service may give each customer a **salt**, a word: only requests with the same salt find each other's blocks. What
#    does another salt find? And the same prompt, after others have filled a small pool? Then run the second cell.
# 4. **Long outputs.** Sharing shortens the prefill alone.

# %% id="length-knob-run"
reserve = 2048
tokens_each = [64, 128, 300, 600, 1200, 2048]
by_range = [requests_that_fit(POOL_BYTES, token_bytes, t, reserved_tokens=reserve) for t in tokens_each]
by_block = [requests_that_fit(POOL_BYTES, token_bytes, t, block_size=16) for t in tokens_each]
gains = [b / r for b, r in zip(by_block, by_range, strict=True)]
show(curve(
    tokens_each, {"gain": gains}, x_title="tokens a request (prompt + output)",
    y_title=f"gain over reserving {reserve:,}", log_x=True, height=320,
    sentence=f"The gain falls from {gains[0]:.0f} times at {tokens_each[0]} tokens to {gains[-1]:.1f} times at "
    f"{tokens_each[-1]:,}: paging wins back what was reserved and not used, and nothing else.",
))
exact = requests_that_fit(POOL_BYTES, token_bytes, 300)
held = by_range[-1]
print(f"1. Equal and known, 300 tokens: {exact} requests with exact ranges, {fit} with blocks of 16.")
print(f"2. Reserving {reserve:,} holds {held} requests; blocks hold {by_block[-1]} of {tokens_each[-1]:,} tokens,")
print(f"   {by_block[-1] / held:.1f} times: what is reserved beyond the longest request is always won back.")

# %% id="prefix-knob-run"
again = Engine(model, EngineConfig(block_size=16, num_blocks=200))
again.generate([first], four)
changed = {at: [*first[:at], 17, *first[at + 1 :]] for at in (1000, 667, 333, 0)}  # one other token
seconds = [again.generate([prompt], four)[0].metrics.ttft_s for prompt in changed.values()]
show(curve(
    list(changed), {"prefix caching": seconds, "without": [before_s] * 4}, y_title="s until the first output token",
    x_title="tokens in front of the changed one", height=320,
    sentence=f"One changed token costs all that stands behind it: {seconds[0]:.2f} s with 1,000 tokens in front of it, "
    f"{seconds[-1]:.2f} s with none ({machine()}).",
))
small = Engine(model, EngineConfig(block_size=16, num_blocks=40))
def taken_over(prompt, salt=None):
    return small.generate([prompt], SamplingParams(max_tokens=1, cache_salt=salt))[0].metrics.num_cached_tokens
found = {"new": taken_over(first[:257]), "once more": taken_over(first[:257])}
found["under another salt"] = taken_over(first[:257], "customer 2")
taken_over(first[300:900])  # somebody else, with 600 tokens, in a pool of 40 blocks
found["after somebody else's 600 tokens"] = taken_over(first[:257])
print("3. Prompt tokens taken over, of 257:", *(f"   {when}: {tokens}" for when, tokens in found.items()), sep="\n")
longest = (before_s - after_s) / kept[1].metrics.tpot_s
print(f"4. From {longest:.0f} output tokens on, decoding takes longer than all that the cache saved.")

# %% [markdown] id="self-tests"
# **The same text is not enough.** Behind another first token the same words have other keys and values. So what changes
# from request to request, a name or the time of day, belongs behind the system prompt and never in front of it.
#
# ## Self-tests
#
# Write two short functions. A check names the first wrong value and the likely mistake. `hint("02.slot")` gives the
# next of three hints. Python's integers and lists are enough; do not use `servelab` in your answers.

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

# %% id="task-match" tags=["exercise"]
# Task 02.match (fill, 8 minutes, medium)
def match_prefix(prompt, cached, block_size):
    """The blocks that a new request takes over, in order. prompt: its tokens, a list of numbers.

    cached[sum(tokens)] is (tokens, block): `tokens` are all tokens of some earlier request up to the end of one of its
    full blocks, and `block` holds that last one. The sum is a poor hash: different tokens can have the same.
    """
    ### BEGIN SOLUTION 02.match
    blocks = []
    for end in range(block_size, len(prompt), block_size):  # never the whole prompt
        tokens, block = cached.get(sum(prompt[:end]), ([], None))
        if tokens != prompt[:end]:
            break
        blocks.append(block)
    return blocks
    ### END SOLUTION

# %% id="check-match" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("02.match", match_prefix)

# %% [markdown] id="deeper-self-tests" tags=["deeper"]
# ### Deeper: two more self-tests
#
# How many blocks a request takes, and what the last ones waste.

# %% id="task-blocks" tags=["deeper", "exercise"]
# Task 02.blocks (fill, 3 minutes, easy)
def blocks_for(num_tokens, block_size):
    """How many blocks a request with `num_tokens` stored tokens owns. blocks_for(7, 4) is 2. Returns int."""
    ### BEGIN SOLUTION 02.blocks
    return (num_tokens + block_size - 1) // block_size
    ### END SOLUTION

# %% id="check-blocks" tags=["deeper", "self-test"]
# NBVAL_CHECK_OUTPUT
check("02.blocks", blocks_for)

# %% id="task-waste" tags=["deeper", "exercise"]
# Task 02.waste (fill, 5 minutes, medium)
def internal_waste(lengths, block_size):
    """Empty slots in the blocks of several requests, together. internal_waste([7], 4) is 1. Returns int."""
    ### BEGIN SOLUTION 02.waste
    return sum(-length % block_size for length in lengths)
    ### END SOLUTION

# %% id="check-waste" tags=["deeper", "self-test"]
# NBVAL_CHECK_OUTPUT
check("02.waste", internal_waste)

# %% id="quiz"
quiz("02")

# %% id="own-words"
own_words("02.paging")

# %% [markdown] id="summary" tags=["path55"]
# ## Summary
#
# - A **block table** maps a request's logical blocks to physical ones. A request's blocks may lie anywhere in the pool.
# - A new block comes only when a token needs it, and any free block will do. **Internal fragmentation** stays below one
#   block a request. The mathematics of attention stays too; its reads go through the table.
# - **Capacity** grows by what the reservation wasted. Equal known lengths, used reservations or spare memory: no gain.
# - **Shared blocks**: what begins alike is computed once and stored once, in full blocks; a write to a block with other
#   owners goes to a copy. That saves memory and shortens the time to the first token, not the time between tokens.
#
# **Sources.** Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention" (SOSP): figures 2, 3 for
# waste, section 4.4 for sharing, 7.1 for a kernel that takes 20 to 26 % more time than FasterTransformer's. Zheng et al.
# 2024, "SGLang" (NeurIPS): a prefix cache as a tree. Prabhu et al. 2024, "vAttention": the GPU's own page table instead.
#
# **Next.** Lab 02: write the block manager, find the fault at the block boundary. Chapter 03: who gets the freed seat.
