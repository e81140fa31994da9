# %% [markdown] id="title" nbgrader={"grade": false, "grade_id": "title", "locked": true, "schema_version": 3, "solution": false, "task": false}
# # Lab 02: the block manager
#
# **Who owns which block, and what is lost at its edge?**
#
# Time: about 90 minutes · Difficulty: hard · Hardware: CPU, no network · 19 points
#
# | Task | What you do | Minutes | Difficulty | Points |
# |---|---|---|---|---|
# | 1 `block-manager` | write: allocate, append and free | 30 | hard | 6 |
# | 2 `evidence` | debug: find the fault, as it happened | 8 | easy | 2 |
# | 3 `last-block` | debug: repair it | 12 | medium | 3 |
# | 4 `block-size` | design: a block size under two budgets | 15 | medium | 4 |
# | 5 `waste` | measure: what a crowded pool wastes | 20 | hard | 4 |
#
# You need chapter 02. Each task names the modules that your answer may import.
# servelab's own block manager is for comparing afterwards, not for handing in.

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
lab = Assignment("02", LEARNER, COURSE_SEED)
lab.constants["operations"]

# %% [markdown] id="block-manager-text" nbgrader={"grade": false, "grade_id": "block-manager-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 1: a block manager
#
# *Write · 30 minutes · hard · 6 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# The pool has `num_blocks` blocks, numbered from 0, of `block_size` slots each. Write the manager that hands them out.
#
# - `allocate(request_id, num_tokens)`: a new request comes with its tokens. It gets as many blocks as they need.
# - `append(request_id)`: the request gets one token more. Only when its last block is full does it take a new one.
# - `free(request_id)`: all its blocks go back. Freeing it again, or freeing a stranger, does nothing [vllm#1556].
#
# `allocate` and `append` return `True`; when too few blocks are free they return `False` and change nothing at all.
# `block_table(request_id)` is the list of its blocks, in the order of its tokens. `num_free` counts free blocks.
# Which free block you hand out is up to you.

# %% [markdown] id="block-manager-hand" nbgrader={"grade": false, "grade_id": "block-manager-hand", "locked": true, "schema_version": 3, "solution": false, "task": false}
# By hand first: your operations are above, the pool has 7 blocks of 4. A has 7 tokens and takes 2 blocks. Its 8th
# token still fits into its last block; its 9th needs a new one. After each operation: do free and owned blocks make 7?


# %% id="block-manager" nbgrader={"grade": false, "grade_id": "block-manager", "locked": false, "schema_version": 3, "solution": true, "task": false}
class BlockManager:
    """Block tables over a pool of num_blocks blocks of block_size slots."""

    def __init__(self, num_blocks, block_size):
        ### BEGIN SOLUTION 1
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.tables = {}
        self.num_tokens = {}
        ### END SOLUTION

    @property
    def num_free(self):
        ### BEGIN SOLUTION 1
        return len(self.free_blocks)
        ### END SOLUTION

    def block_table(self, request_id):
        ### BEGIN SOLUTION 1
        return list(self.tables[request_id])
        ### END SOLUTION

    def allocate(self, request_id, num_tokens):
        ### BEGIN SOLUTION 1
        needed = -(-num_tokens // self.block_size)
        if needed > len(self.free_blocks):
            return False
        self.tables[request_id] = [self.free_blocks.pop() for _ in range(needed)]
        self.num_tokens[request_id] = num_tokens
        return True
        ### END SOLUTION

    def append(self, request_id):
        ### BEGIN SOLUTION 1
        if self.num_tokens[request_id] == len(self.tables[request_id]) * self.block_size:
            if not self.free_blocks:
                return False
            self.tables[request_id].append(self.free_blocks.pop())
        self.num_tokens[request_id] += 1
        return True
        ### END SOLUTION

    def free(self, request_id):
        ### BEGIN SOLUTION 1
        self.free_blocks += self.tables.pop(request_id, [])
        self.num_tokens.pop(request_id, None)
        ### END SOLUTION


# %% id="block-manager-check" nbgrader={"grade": true, "grade_id": "block-manager-check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
lab.check("block-manager", BlockManager)
### BEGIN HIDDEN TESTS
Assignment("02", LEARNER, COURSE_SEED).grade("block-manager", BlockManager)
### END HIDDEN TESTS

# %% [markdown] id="stuck" nbgrader={"grade": false, "grade_id": "stuck", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Stuck? `hint("lab02.block-manager")` gives the first of three hints: a question, then what always holds, then the steps.
# Every task has three. Asking costs nothing.

# %% [markdown] id="evidence-text" nbgrader={"grade": false, "grade_id": "evidence-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 2: find the fault
#
# *Debug · 8 minutes · easy · 2 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# A small engine counted the tokens of a request's last block like this. For most lengths it was right. For some, the next
# step wrote to the slot before the block, which may be somebody else's [MinivLLM#76, #87].
#
# Return one length that shows it: `(num_tokens, what the code says, what is right)`, for any block size.


# %% id="evidence-reported" nbgrader={"grade": false, "grade_id": "evidence-reported", "locked": true, "schema_version": 3, "solution": false, "task": false}
def reported_last_block_tokens(num_tokens, block_size):
    full_blocks = num_tokens // block_size
    return num_tokens - full_blocks * block_size


reported_last_block_tokens(7, 4)


# %% id="evidence" nbgrader={"grade": false, "grade_id": "evidence", "locked": false, "schema_version": 3, "solution": true, "task": false}
def evidence(block_size):
    """A length at which the code above is wrong. Returns (num_tokens, reported, right)."""
    ### BEGIN SOLUTION 2
    num_tokens = 2 * block_size
    return num_tokens, reported_last_block_tokens(num_tokens, block_size), block_size
    ### END SOLUTION


# %% id="evidence-check" nbgrader={"grade": true, "grade_id": "evidence-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
lab.check("evidence", evidence)
### BEGIN HIDDEN TESTS
Assignment("02", LEARNER, COURSE_SEED).grade("evidence", evidence)
### END HIDDEN TESTS

# %% [markdown] id="last-block-text" nbgrader={"grade": false, "grade_id": "last-block-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 3: repair the fault
#
# *Debug · 12 minutes · medium · 3 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# The count went into two places: the slot of the last token, and the tokens that the last block holds (they are what a
# prefix cache hashes). Here are both, with the fault in. Write them right, for every length from 1 on and every block size.
#
# The slot of a token is `block * block_size + place in the block`.


# %% id="last-block-reported" nbgrader={"grade": false, "grade_id": "last-block-reported", "locked": true, "schema_version": 3, "solution": false, "task": false}
def reported_last_block(block_table, token_ids, block_size):
    count = len(token_ids) % block_size
    slot = block_table[-1] * block_size + count - 1
    return slot, token_ids[-count:]


reported_last_block([10, 11], list(range(101, 108)), 4), reported_last_block([10, 11], list(range(101, 109)), 4)


# %% id="last-block" nbgrader={"grade": false, "grade_id": "last-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def last_block(block_table, token_ids, block_size):
    """Returns (the slot of the last token, the list of the tokens in the last block)."""
    ### BEGIN SOLUTION 3
    index, place = divmod(len(token_ids) - 1, block_size)
    return block_table[index] * block_size + place, token_ids[index * block_size :]
    ### END SOLUTION


# %% id="last-block-check" nbgrader={"grade": true, "grade_id": "last-block-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
lab.check("last-block", last_block)
### BEGIN HIDDEN TESTS
Assignment("02", LEARNER, COURSE_SEED).grade("last-block", last_block)
### END HIDDEN TESTS

# %% [markdown] id="block-size-text" nbgrader={"grade": false, "grade_id": "block-size-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 4: a block size under two budgets
#
# *Design · 15 minutes · medium · 4 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`.
#
# Small blocks waste little, and need long block tables. The pool below is yours: its requests run together and reach these
# `lengths` (prompt and output tokens). Choose `block_size` and `num_blocks` so that all of this holds:
#
# 1. `block_size` is a power of two from 1 to 256 (GPU programs take powers of two).
# 2. The blocks fit into `pool_bytes`, at `kv_bytes_per_token` a slot.
# 3. Every request fits at its full length, all of them at once.
# 4. The block tables fit into `table_bytes`: one row a request, every row as wide as the longest request needs,
#    `entry_bytes` an entry.
# 5. Of all sizes for which rules 1 to 4 hold, yours leaves the fewest slots of last blocks empty.

# %% id="block-size-pool" nbgrader={"grade": false, "grade_id": "block-size-pool", "locked": true, "schema_version": 3, "solution": false, "task": false}
lab.constants["pool"]


# %% id="block-size" nbgrader={"grade": false, "grade_id": "block-size", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cut(pool):
    """Your choice. Returns {"block_size": int, "num_blocks": int}."""
    ### BEGIN SOLUTION 4
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        needed = [-(-length // block_size) for length in pool["lengths"]]
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        table_bytes = len(needed) * max(needed) * pool["entry_bytes"]
        if table_bytes <= pool["table_bytes"] and sum(needed) <= num_blocks:
            return {"block_size": block_size, "num_blocks": num_blocks}
    ### END SOLUTION


# %% id="block-size-check" nbgrader={"grade": true, "grade_id": "block-size-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
lab.check("block-size", cut)
### BEGIN HIDDEN TESTS
Assignment("02", LEARNER, COURSE_SEED).grade("block-size", cut)
### END HIDDEN TESTS

# %% [markdown] id="waste-text" nbgrader={"grade": false, "grade_id": "waste-text", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## Task 5: what a crowded pool wastes
#
# *Measure · 20 minutes · hard · 4 points*
#
# *May import:* `abc`, `bisect`, `collections`, `dataclasses`, `enum`, `functools`, `heapq`, `itertools`, `math`, `operator`, `typing`, `servelab.trace.event`, `servelab.trace.record`, `servelab.trace.replay`.
# Their names also come by `from servelab.trace import ...`. Its `waste` and `occupancy` are for comparing afterwards.
#
# The cell serves your load on the real model and engine, in a pool that is too small for it: requests wait for memory.
# Each line of the load is `[step of arrival, prompt tokens, output tokens]`.

# %% id="waste-run" nbgrader={"grade": false, "grade_id": "waste-run", "locked": true, "schema_version": 3, "solution": false, "task": false}
from servelab.course.tasks.workload import serve
from servelab.engine import Engine, EngineConfig
from servelab.model import load_model

load = lab.constants["load"]
engine = Engine(load_model("smollm2-135m", progress=False), EngineConfig(**load["engine"]))
trace = serve(engine, load)
print(f"{len(trace.requests)} requests, {len(trace.steps)} steps, {trace.num_blocks} blocks of {trace.block_size}")

# %% [markdown] id="waste-what" nbgrader={"grade": false, "grade_id": "waste-what", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Measure your run. Count by a program or by hand; nothing is timed. Look at each step when it has computed and nobody has
# left yet: the moment `"computed"`.
#
# | Name | What it is |
# |---|---|
# | `peak_blocks` | the most blocks owned at once |
# | `empty_slots` | slots of owned blocks without a token, summed over all steps |
# | `crossings` | blocks handed out to requests that ran before that step (not admitted in it) |
# | `refusals` | steps in which the first waiting request was refused for memory |
# | `tails_would_do` | refused steps in which its tokens (`num_tokens`) would fit into all slots without a token: the free blocks' and the empty ones of owned blocks |
# | `remedy` | `"smaller blocks"` if those are at least half of the refusals, else `"more memory"` |
#
# `trace.state_at(i, "computed").requests[j]` has `block_table`, `num_tokens` and `num_computed_tokens`; whoever has no blocks
# stores nothing. Events have a `kind`: `"admit"`, `"allocate"`, `"wait"` (with a `reason`) ... One step of yours:

# %% id="waste-look" nbgrader={"grade": false, "grade_id": "waste-look", "locked": true, "schema_version": 3, "solution": false, "task": false}
for event in trace.steps[0].events:
    print(event)


# %% id="waste" nbgrader={"grade": false, "grade_id": "waste", "locked": false, "schema_version": 3, "solution": true, "task": false}
def measure(trace):
    """Counts of your trace. Returns a dict with the six names above."""
    ### BEGIN SOLUTION 5
    found = {"peak_blocks": 0, "empty_slots": 0, "crossings": 0, "refusals": 0, "tails_would_do": 0}
    for number, step in enumerate(trace.steps):
        requests = trace.state_at(number, "computed").requests
        blocks = sum(len(request.block_table) for request in requests)
        tokens = sum(request.num_computed_tokens for request in requests if request.block_table)
        found["peak_blocks"] = max(found["peak_blocks"], blocks)
        found["empty_slots"] += blocks * trace.block_size - tokens
        admitted = {event.request for event in step.events if event.kind == "admit"}
        found["crossings"] += sum(event.kind == "allocate" and event.request not in admitted for event in step.events)
        for event in step.events:
            if event.kind == "wait" and event.reason == "no_memory":
                found["refusals"] += 1
                found["tails_would_do"] += requests[event.request].num_tokens <= trace.num_slots - tokens
    enough = 2 * found["tails_would_do"] >= found["refusals"]
    return {**found, "remedy": "smaller blocks" if enough else "more memory"}
    ### END SOLUTION


# %% id="waste-check" nbgrader={"grade": true, "grade_id": "waste-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
lab.check("waste", measure)
### BEGIN HIDDEN TESTS
Assignment("02", LEARNER, COURSE_SEED).grade("waste", measure)
### END HIDDEN TESTS

# %% [markdown] id="end" nbgrader={"grade": false, "grade_id": "end", "locked": true, "schema_version": 3, "solution": false, "task": false}
# ## What to take along
#
# A block manager has one invariant: free and owned blocks are the whole pool, and no block has two owners. Its faults sit
# at the edge, where a length fills its last block exactly. Half the block size never wastes more slots, and doubles the tables.
#
# Sources: Kwon et al. 2023, section 4 (PagedAttention); MinivLLM#76 and #87 (the edge); vllm#1556 (freed twice).
# Next: chapter 03, where the scheduler decides who gets the blocks.
