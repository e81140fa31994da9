"""`kernel_access`: which slots of a paged KV cache each program of a launch read or wrote, from its record."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from servelab.figures.theme import MUTED, SERIES, card
from servelab.trace.kernel import KernelRecord, ProgramRecord

MAX_PROGRAMS = 24


def kernel_access(
    record: KernelRecord,
    tensor: str,
    *,
    slot_elements: int,
    num_slots: int,
    block_size: int,
    names: Mapping[int, str] | None = None,
    programs: Sequence[str] = (),
    kind: str = "load",
    sentence: str = "",
    alt: str = "",
) -> go.Figure:
    """One row a program, one column a slot: filled where the program touched the slot's numbers.

    tensor: of the record, keys or values. slot_elements: numbers from one slot to the next. names: of blocks, such as
    whose they are; programs: of the rows, by default their ids.
    Raises ValueError for more than 24 programs, which nobody could tell apart.
    """
    rows = [program for program in record.programs if touched(program, tensor, kind, slot_elements)]
    if not 1 <= len(rows) <= MAX_PROGRAMS:
        raise ValueError(f"expected 1 to {MAX_PROGRAMS} programs that {kind} {tensor}, got {len(rows)}")
    labels = list(programs) or [f"program {program.id}" for program in rows]
    figure = go.Figure()
    for number, (program, label) in enumerate(zip(rows, labels, strict=True)):
        slots = sorted(slot for slot in touched(program, tensor, kind, slot_elements) if slot < num_slots)
        figure.add_bar(
            x=[slot + 0.5 for slot in slots],
            y=[0.8] * len(slots),
            base=[number - 0.4] * len(slots),
            width=0.92,
            marker={"color": SERIES[number % len(SERIES)], "line": {"width": 0}},
            customdata=[[slot // block_size, slot % block_size] for slot in slots],
            hovertemplate=f"{label}: block %{{customdata[0]}}, slot %{{customdata[1]}}<extra></extra>",
            showlegend=False,
        )
    num_blocks = -(-num_slots // block_size)
    for block in range(num_blocks + 1):
        figure.add_vline(x=block * block_size, line={"color": MUTED, "width": 1})
    card(figure, height=150 + 34 * len(rows), sentence=sentence, alt=alt)
    named = names or {}
    figure.update_layout(barmode="overlay", margin={"l": 20, "t": 28})
    figure.update_xaxes(
        range=[0, num_slots],
        tickvals=[block * block_size + block_size / 2 for block in range(num_blocks)],
        ticktext=[f"{block}<br>{named[block]}" if block in named else str(block) for block in range(num_blocks)],
        title_text=f"physical block, {block_size} slots each",
        showgrid=False,
        ticks="",
    )
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickvals=list(range(len(rows))),
        ticktext=labels,
        automargin=True,
        showgrid=False,
        ticks="",
    )
    return figure


def touched(program: ProgramRecord, tensor: str, kind: str, slot_elements: int) -> set[int]:
    """The slots of which a program loaded or stored at least one number."""
    return {
        slot
        for access in program.accesses
        if access.kind == kind and access.tensor == tensor
        for start, stop in access.ranges
        for slot in range(start // slot_elements, -(-stop // slot_elements))
    }
