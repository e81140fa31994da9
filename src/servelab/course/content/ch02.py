"""Chapter 02, PagedAttention: its questions, and what is said after the answers. Numbers are computed here."""

from servelab.costs import (
    MODEL_SPECS,
    blocks_needed,
    kv_cache_bytes_per_token,
    paged_waste,
    requests_that_fit,
    workload,
)
from servelab.course.content.form import (
    Chapter,
    Choice,
    GlossaryTerm,
    Goal,
    OwnWords,
    Prediction,
    Quiz,
    QuizItem,
)
from servelab.translation import _

POOL_BYTES, MAX_MODEL_LEN, BLOCK_SIZE = 512 * 2**20, 2048, 16
REQUEST_TOKENS = 300
MEAN_TOKENS = sum(request.num_tokens for request in workload()) / len(workload())
HALF_BLOCK = sum(range(256)) / 256  # a last block of 256 slots has 0 to 255 empty ones
SMOLLM2_BYTES = kv_cache_bytes_per_token(MODEL_SPECS["SmolLM2-135M"])
LLAMA_BYTES = kv_cache_bytes_per_token(MODEL_SPECS["Llama-3-8B"])
RESERVED_FIT = requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, REQUEST_TOKENS, reserved_tokens=MAX_MODEL_LEN)


def _ninth(values: object) -> str:
    """Which choice the third block of A's table is."""
    block = dict(values)["actual"]  # type: ignore[call-overload]
    return {1: "same", 2: "next"}.get(block, "free")


PREDICTIONS = (
    Prediction(
        "02.ninth",
        _(
            "A has 7 prompt tokens, B has 2. A block has 4 slots, and the pool has 7 blocks, 0 to 6. A arrives first, "
            "B right after it; the pool hands out 0, 1, 2, ... From then on each of them "
            "stores one more token a step. **Where does A's 9th token go?**"
        ),
        _(
            "A's 7 prompt tokens took blocks 0 and 1, B's 2 took block 2. A's 8th token filled the last slot of "
            "block 1, so the 9th needed a block, and the pool gave block {actual}. A's table is now {table}: it "
            "skips a block, and nothing had to move."
        ),
        choices=(
            Choice(
                "same",
                _("Into a free slot of block 1, A's second block"),
                _("Block 1 has 4 slots, for A's tokens 5 to 8. The 8th token took the last of them."),
            ),
            Choice(
                "next",
                _("Into block 2, the one behind A's other blocks"),
                _("B arrived before A needed it, so block 2 holds B's tokens. Its two empty slots are B's as well."),
            ),
            Choice(
                "free",
                _("Into block 3, wherever the rest of A lies"),
                _("Any free block will do. The table remembers which one it was."),
            ),
            Choice(
                "move",
                _("A moves to three blocks that lie in a row"),
                _("Nothing ever moves. The table is there so that nothing has to."),
            ),
        ),
        how="counted",
        decide=_ninth,
    ),
    Prediction(
        "02.same-tokens",
        _(
            "Three prompts, 12 output tokens each: 36 output tokens, chosen greedily in float32. You run them with one "
            "unbroken range a request, and again with blocks of 4 that lie mixed in the pool. "
            "**How many of the 36 output tokens come out differently?**"
        ),
        _(
            "Attention takes a query, and for each earlier token a key and a value. Where these lie is not in the "
            "formula. Each key carries its own position (the rotary embedding turned it before it was stored), so the "
            "engine only has to find the right ones. With blocks of 4 it jumped {places} times to a block that does "
            "not follow the one before."
        ),
        unit=_("output tokens"),
        high=36,
        how="counted",
    ),
    Prediction(
        "02.capacity",
        _(
            "A pool of 512 MiB, {bytes:,} bytes a token (SmolLM2 at 16 bit). Each request ends with {tokens} tokens, "
            "prompt and output together. A server that reserves {reserve:,} slots for each holds {fit} requests. "
            "**How many does it hold with blocks of {block} and nothing reserved?**"
        ).format(
            bytes=SMOLLM2_BYTES,
            tokens=REQUEST_TOKENS,
            reserve=MAX_MODEL_LEN,
            fit=RESERVED_FIT,
            block=BLOCK_SIZE,
        ),
        _(
            "The pool has {slots:,} slots, that is {blocks:,} whole blocks. A request of {tokens} tokens takes "
            "{per_request} blocks: {owned} slots, of which {wasted} stay empty. {blocks:,} / {per_request}, rounded "
            "down, is {actual}. The gain of {gain:.1f} times is nearly all of what was reserved and never used."
        ),
        unit=_("requests"),
        how="calculated",
        close=1.1,
        too_low=_("Did part of the reservation stay in your count? A block comes only when a token needs it."),
        too_high=_("More than the pool has slots for: each request keeps its {owned} slots until it ends."),
    ),
    Prediction(
        "02.waste",
        _(
            "Now real life: lengths differ. The workload has 300 tokens a request on average (prompt and output), "
            "2,048 at most. You fill the pool with blocks of 16, each request at its full length. "
            "**How many percent of the slots that requests own hold no token?**"
        ),
        _(
            "Only the last block of a request can have empty slots, 0 to 15 of its 16: (0 + 15) / 2 = 7.5 on average. "
            "Counted here: {mean_waste:.1f}, beside {mean_tokens:.0f} tokens. The server that reserves 2,048 slots "
            "wastes {reserved_waste:.0f} % of what it hands out. One that knew every length in advance would get "
            "{exact} requests into an empty pool. Blocks hold {paged}, and need to know nothing."
        ),
        unit="%",
        high=100,
        how="counted",
        close=1.4,
        too_high=_("It is tempting to think of half a block in every block. Which blocks of a request are never full?"),
        too_low=_("A length is a multiple of 16 only now and then, so most last blocks have some empty slots."),
    ),
    Prediction(
        "02.block-size",
        _(
            "The same workload with blocks of 256 instead of 16. "
            "**How many percent of the slots that requests own hold no token now?**"
        ),
        _(
            "Half a block again: (0 + 255) / 2 = {half} slots a request, counted {{mean_waste:.0f}}. As a share of the "
            "slots owned: {half} / ({mean:.0f} + {half}) = {share:.0f} %. The pool holds {{fit}} of these requests "
            "instead of {{fit_16}}. Sixteen times the waste, but less than sixteen times the share: what you divide by "
            "grows as well."
        ).format(half=HALF_BLOCK, mean=MEAN_TOKENS, share=100 * HALF_BLOCK / (MEAN_TOKENS + HALF_BLOCK)),
        unit="%",
        high=100,
        how="counted",
        close=1.25,
        too_high=_("The wasted slots grow about sixteenfold. But what do you divide them by?"),
        too_low=_("How many slots does half a block of 256 have, beside a request of 300 tokens?"),
    ),
)

RETRIEVAL = Quiz(
    "02.retrieval",
    _("From chapter 01: two questions"),
    (
        QuizItem(
            "kv-bytes",
            _(
                "SmolLM2 stores {bytes:,} bytes a token at 16 bit. A request has 200 prompt tokens and has produced "
                "100 output tokens. How large is its KV cache?"
            ).format(bytes=SMOLLM2_BYTES),
            (
                Choice(
                    "all",
                    _("{mb:.1f} MB").format(mb=300 * SMOLLM2_BYTES / 1e6),
                    _("K and V of every token are kept, of prompt tokens and of output tokens."),
                    right=True,
                ),
                Choice(
                    "prompt",
                    _("{mb:.1f} MB").format(mb=200 * SMOLLM2_BYTES / 1e6),
                    _("This counts the prompt tokens only. Output tokens are looked at by later ones too."),
                ),
                Choice(
                    "output",
                    _("{mb:.1f} MB").format(mb=100 * SMOLLM2_BYTES / 1e6),
                    _("This counts the output tokens only. The prompt tokens' K and V came first."),
                ),
            ),
        ),
        QuizItem(
            "hole",
            _(
                "A pool has 19 free slots. The longest run of free slots is 7. A request that needs 9 slots is "
                "refused. Which of the three troubles is this?"
            ),
            (
                Choice(
                    "reserved",
                    _("Memory reserved and not used"),
                    _("Reserved memory is not free. These 19 slots belong to nobody."),
                ),
                Choice(
                    "external",
                    _("Holes between requests: external fragmentation"),
                    _('There is enough memory, but not in a row. This chapter removes the words "in a row".'),
                    right=True,
                ),
                Choice(
                    "idle",
                    _("Seats that stay idle in a static batch"),
                    _("That trouble is about time. Here a request cannot get memory."),
                ),
            ),
        ),
    ),
)

_RARE = requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, 1900, block_size=16) / requests_that_fit(
    POOL_BYTES, SMOLLM2_BYTES, 1900, reserved_tokens=MAX_MODEL_LEN
)
_TABLE, _POSITION, _SIZE = [5, 0, 9], 17, 8
_SLOT = _TABLE[_POSITION // _SIZE] * _SIZE + _POSITION % _SIZE
_SHORT, _LARGE = 64, 128

QUIZ = Quiz(
    "02",
    _("Quiz: PagedAttention"),
    (
        QuizItem(
            "boundary",
            _(
                "Block size 16. A request has 40 prompt tokens and has stored 8 output tokens. It stores one more. "
                "What does the block manager do?"
            ),
            (
                Choice(
                    "new",
                    _("It takes one free block and appends it to the table."),
                    _("40 + 8 = 48 tokens fill {blocks} blocks exactly. Token 49 needs a new one.").format(
                        blocks=blocks_needed(48, 16)
                    ),
                    right=True,
                ),
                Choice(
                    "nothing",
                    _("Nothing: the last block has room."),
                    _("That was so one token earlier. 48 is a multiple of 16: the last block is full."),
                ),
                Choice(
                    "copy",
                    _("It takes four free blocks and copies the 48 tokens over."),
                    _("That would keep the request in a row. The table makes it unnecessary."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "slot",
            _(
                "Block size {size}, block table {table}. In which slot does the token with position {position} lie?"
            ).format(size=_SIZE, table=_TABLE, position=_POSITION),
            (
                Choice(
                    "row",
                    str(_TABLE[0] * _SIZE + _POSITION),
                    _("That would be right if the blocks followed block {first} in a row.").format(first=_TABLE[0]),
                ),
                Choice(
                    "right",
                    str(_SLOT),
                    _("Logical block {index}, offset {offset}: physical block {block} begins at slot {start}.").format(
                        index=_POSITION // _SIZE,
                        offset=_POSITION % _SIZE,
                        block=_TABLE[_POSITION // _SIZE],
                        start=_TABLE[_POSITION // _SIZE] * _SIZE,
                    ),
                    right=True,
                ),
                Choice(
                    "off",
                    str(_SLOT - 1),
                    _("One too few: the first token has position 0."),
                ),
                Choice(
                    "sum",
                    str(_TABLE[_POSITION // _SIZE] + _POSITION % _SIZE),
                    _("Block number plus offset. Each block before it has {size} slots, not one.").format(size=_SIZE),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "block-bytes",
            _(
                "Llama-3-8B at 16 bit: 32 layers, 32 query heads, 8 KV heads, head dimension 128. How large is one "
                "block of 16 tokens, over all layers?"
            ),
            (
                Choice(
                    "one",
                    _("{kib:,.0f} KiB").format(kib=LLAMA_BYTES / 2**10),
                    _("This is one token: 2 x 32 layers x 8 KV heads x 128 x 2 bytes. A block has 16."),
                ),
                Choice(
                    "right",
                    _("{mib:,.0f} MiB").format(mib=16 * LLAMA_BYTES / 2**20),
                    _("{bytes:,} bytes a token, 16 tokens.").format(bytes=LLAMA_BYTES),
                    right=True,
                ),
                Choice(
                    "query",
                    _("{mib:,.0f} MiB").format(mib=16 * 4 * LLAMA_BYTES / 2**20),
                    _("This counts 32 heads. K and V are stored for the 8 KV heads only."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "long-requests",
            _(
                "Another load on the 512 MiB pool: every request ends with 1,900 tokens, and the server would have "
                "reserved 2,048. How many times more requests do blocks of 16 hold?"
            ),
            (
                Choice(
                    "seven",
                    _("About {gain:.0f} times, as with 300 tokens").format(
                        gain=requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, REQUEST_TOKENS, block_size=BLOCK_SIZE)
                        / RESERVED_FIT
                    ),
                    _("The gain is what the reservation wasted, and here it wastes little."),
                ),
                Choice(
                    "hardly",
                    _("About {gain:.2f} times").format(gain=_RARE),
                    _("2,048 / 1,900 slots, rounded to whole requests. A reservation that gets used is no waste."),
                    right=True,
                ),
                Choice(
                    "fewer",
                    _("It holds fewer: half of every last block is empty"),
                    _("1,900 tokens leave {waste} slots of the last block empty. The reservation leaves 148.").format(
                        waste=paged_waste(1900, 16)
                    ),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "short-requests",
            _(
                "A server answers with yes or no: {short} tokens a request, prompt and output. Somebody sets the block "
                "size to {large}. How much of the memory that requests own is wasted?"
            ).format(short=_SHORT, large=_LARGE),
            (
                Choice(
                    "none",
                    _("Next to nothing: waste is always less than one block"),
                    _("Less than one block, yes. But here one block is all a request has."),
                ),
                Choice(
                    "half",
                    _("{share:.0f} %").format(
                        share=100 * paged_waste(_SHORT, _LARGE) / (blocks_needed(_SHORT, _LARGE) * _LARGE)
                    ),
                    _("One block of {large} slots, {short} used. The block must be small beside the request.").format(
                        large=_LARGE, short=_SHORT
                    ),
                    right=True,
                ),
                Choice(
                    "four",
                    _("Under 4 %, as the chapter measured"),
                    _("That was blocks of 16 and 300 tokens. It is half a block beside a request that counts."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "analogy",
            _("Which part of virtual memory has a counterpart in PagedAttention?"),
            (
                Choice(
                    "fault",
                    _("The page fault: touching a page that is not there lets the system fetch it"),
                    _("No hardware notices anything. The scheduler makes sure of the block before the step runs."),
                ),
                Choice(
                    "tlb",
                    _("The TLB, which translates addresses behind the program's back"),
                    _("The attention kernel itself reads the table, in plain code."),
                ),
                Choice(
                    "frame",
                    _("The page frame: a piece of physical memory of fixed size that any page may take"),
                    _("A physical block. Equal sizes are why any free one will do."),
                    right=True,
                ),
                Choice(
                    "protection",
                    _("Protection: a process cannot read the pages of another"),
                    _("A wrong entry in a block table reads another user's keys, and nothing stops it. Tests must."),
                ),
            ),
        ),
        QuizItem(
            "algorithm",
            _('A colleague says: "We switched to PagedAttention, so answers may change a little." Your reply?'),
            (
                Choice(
                    "new",
                    _("Yes: it is another attention algorithm, with other results"),
                    _("Same queries, keys and values, same formula. Only the addresses differ."),
                ),
                Choice(
                    "lossy",
                    _("Yes: what falls between two blocks is approximated"),
                    _("Nothing falls between blocks. Every token has its slot."),
                ),
                Choice(
                    "same",
                    _("It sums the same products. Another kernel may round the last bit differently, no more"),
                    _("As measured: greedy float32 tokens stayed the same, keys were equal bit for bit."),
                    right=True,
                ),
            ),
        ),
    ),
)

CHAPTER = Chapter(
    number="02",
    title=_("PagedAttention"),
    question=_("How do many requests share one memory?"),
    minutes=60,
    difficulty="medium",
    hardware=_("CPU"),
    goals=(
        Goal(
            "02.table",
            _("Say by hand which block and which slot take a request's next token."),
            ("prediction:02.ninth", "task:02.slot"),
        ),
        Goal(
            "02.same",
            _("Say why scattered blocks give the same tokens, and what an operating system has that this has not."),
            ("prediction:02.same-tokens", "quiz:02"),
        ),
        Goal(
            "02.capacity",
            _("Compute how many requests a pool holds, with a reservation and with blocks."),
            ("prediction:02.capacity", "task:02.blocks"),
        ),
        Goal(
            "02.waste",
            _("Compute what the last blocks waste, choose a block size, and say when paging wins nothing."),
            ("prediction:02.block-size", "task:02.waste", "words:02.paging"),
        ),
    ),
    predictions=PREDICTIONS,
    quizzes=(RETRIEVAL, QUIZ),
    own_words=(
        OwnWords(
            "02.paging",
            _(
                "Without looking back: why could one card serve only a few people, and why does the same card serve "
                "several times more with a block table? What does it cost, and when does it win nothing?"
            ),
            (
                _(
                    "Before: one unbroken range a request, as long as it might ever become, because nobody knows how "
                    "many output tokens will come. Most of it stayed empty."
                ),
                _(
                    "Now: blocks of fixed size, handed out when a token needs one, found through a table. Any free "
                    "block will do; a request wastes less than one block."
                ),
                _(
                    "The mathematics of attention stays; its reads go through the table. No gain where lengths are "
                    "known and equal, where the reservation gets used, or where memory is not what is short."
                ),
            ),
        ),
    ),
    glossary=(
        GlossaryTerm(
            "PagedAttention",
            "分页注意力",
            _("Attention that finds keys and values through a block table, so that they may lie anywhere."),
        ),
        GlossaryTerm("slot", "槽位", _("The place of one token's K and V, over all layers.")),
        GlossaryTerm("block", "块", _("A fixed number of slots side by side, handed out together."), (_("page"),)),
        GlossaryTerm(
            "block table",
            "块表",
            _("A request's list of blocks: entry i says which physical block holds its logical block i."),
            (_("page table"),),
        ),
        GlossaryTerm("logical block", "逻辑块", _("The block as the request counts: position // block size.")),
        GlossaryTerm(
            "physical block", "物理块", _("The block as the pool counts: where the bytes are."), (_("page frame"),)
        ),
        GlossaryTerm(
            "internal fragmentation",
            "内部碎片",
            _("Slots that a request owns and never uses; with blocks, the end of its last one."),
        ),
        GlossaryTerm("capacity", "容量", _("How many requests a KV pool holds at the same time.")),
    ),
)
