"""The quizzes of chapter 02: two questions that look back, and its own."""

from servelab.costs import blocks_needed, paged_waste, requests_that_fit
from servelab.course.content.ch02.load import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    POOL_BYTES,
    REQUEST_TOKENS,
    RESERVED_FIT,
    SMOLLM2_BYTES,
    blocks_of_answers,
    tokens_taken_over,
)
from servelab.course.content.form import Choice, Quiz, QuizItem
from servelab.translation import _

RETRIEVAL = Quiz(
    "02.retrieval",
    _("From chapter 01: two questions"),
    (
        QuizItem(
            "kv-bytes",
            _(
                "SmolLM2 stores {bytes:,} bytes a token at 16 bit. A request has stored 200 prompt tokens and 100 "
                "output tokens. How large is its KV cache?"
            ).format(bytes=SMOLLM2_BYTES),
            (
                Choice(
                    "all",
                    _("{mb:.1f} MB").format(mb=300 * SMOLLM2_BYTES / 1e6),
                    _("300 tokens are stored: K and V are kept of prompt tokens and of output tokens."),
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
_AGAIN = 96
_LONG, _STORED, _ANSWERS = 40, 6, 4

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
                    _("The first slot of block {block}. Position {position} is not the first of its block.").format(
                        block=_TABLE[_POSITION // _SIZE], position=_POSITION
                    ),
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
            "long-requests",
            _(
                "Another load on the 512 MiB pool: every request ends with 1,900 tokens, prompt and output together. "
                "Blocks of 16 hold how many times the requests of a server that reserves 2,048 slots for each?"
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
                    _("2,048 ÷ 1,900 slots, after rounding to whole requests. What gets used was no waste."),
                    right=True,
                ),
                Choice(
                    "fewer",
                    _("Fewer than once: half of every last block is empty"),
                    _("1,900 tokens leave {waste} slots empty in blocks of 16. The reservation leaves {rest}.").format(
                        waste=paged_waste(1900, 16), rest=MAX_MODEL_LEN - 1900
                    ),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "prefix",
            _(
                "Block size 16, prefix caching on. An earlier prompt had 120 tokens. A new prompt of {prompt} tokens "
                "is exactly its first {prompt}. How many of the new prompt's tokens are not computed again?"
            ).format(prompt=_AGAIN),
            (
                Choice(
                    "all",
                    str(_AGAIN),
                    _(
                        "All six blocks are full and the same. But then nothing would be computed, and without logits "
                        "there is no first output token."
                    ),
                ),
                Choice(
                    "but-one",
                    str(_AGAIN - 1),
                    _(
                        "One token has to be computed, that is true. But a block is taken over as a whole or not at "
                        "all."
                    ),
                ),
                Choice(
                    "right",
                    str(tokens_taken_over(_AGAIN, _AGAIN, 16)),
                    _(
                        "At most {prompt} - 1 tokens may be taken over, rounded down to whole blocks: 5 of 16 tokens."
                    ).format(prompt=_AGAIN),
                    right=True,
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "answers",
            _(
                "Block size 16. One prompt of {prompt} tokens, {answers} answers (`n={answers}`), each of which has "
                "stored {output} output tokens. How many blocks do they own together?"
            ).format(prompt=_LONG, answers=_ANSWERS, output=_STORED),
            (
                Choice(
                    "right",
                    str(blocks_of_answers(_LONG, _STORED, _ANSWERS, 16)),
                    _(
                        "The prompt's {shared} full blocks are there once. The block that the prompt fills only in "
                        "part is copied for all answers but one, so each has {own} of its own."
                    ).format(shared=_LONG // 16, own=blocks_needed(_LONG + _STORED, 16) - _LONG // 16),
                    right=True,
                ),
                Choice(
                    "alone",
                    str(_ANSWERS * blocks_needed(_LONG + _STORED, 16)),
                    _("So many they would own if each answer stored the prompt for itself."),
                ),
                Choice(
                    "one",
                    str(blocks_needed(_LONG + _STORED, 16)),
                    _("So many one answer owns. Their output tokens differ, and each needs a place."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "clock",
            _(
                "Somebody writes the time of day in front of the system prompt of 1,000 tokens, so that every request "
                "begins with other tokens. What does the prefix cache have for the next request?"
            ),
            (
                Choice(
                    "text",
                    _("Nearly all of the system prompt: its text is the same"),
                    _("The same text behind other tokens has other keys and values, in every layer but the first."),
                ),
                Choice(
                    "first",
                    _("All blocks but the first, which holds the time"),
                    _("The blocks behind it were computed behind another time. They are found only through the first."),
                ),
                Choice(
                    "nothing",
                    _("Nothing. The time should stand behind the system prompt"),
                    _("A block is found only when all tokens up to its end are the same."),
                    right=True,
                ),
            ),
        ),
        QuizItem(
            "analogy",
            _("Which part of virtual memory has a counterpart in PagedAttention?"),
            (
                Choice(
                    "fault",
                    _("The page fault: touching a page that is not there lets the system fetch it"),
                    _("No hardware notices anything. The engine takes the block before the step runs."),
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
                    _("A wrong entry in a block table reads another user's keys, and nothing stops it."),
                ),
            ),
        ),
    ),
)
