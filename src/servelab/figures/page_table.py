"""The page table: one request's tokens, its block table, and where its blocks lie in the pool.

Logical blocks stand in the order of the request's tokens; the table maps each to a physical block of the pool; the
pool lies in physical order, the blocks of other requests dimmed.
"""

from dataclasses import dataclass

import plotly.graph_objects as go

from servelab.figures.frame import Frame, frame_figure, text_width
from servelab.figures.pool_grid import HEADER, MARGIN, MAX_PICTURE_HEIGHT, CompactPool, DetailedPool, PoolGrid
from servelab.figures.table_view import TableView, free_blocks
from servelab.figures.table_words import alt, caption, empty_note, legend, sentence, slot_title
from servelab.trace import Trace
from servelab.translation import _

__all__ = ["free_blocks", "page_table_figure", "page_table_frame"]

GAP = 26


def page_table_frame(
    trace: Trace, step: int, request: int | str = 0, moment: str = "computed", *, width: int = 900
) -> Frame:
    """Draw one request's page table at one moment of one step.

    request: its index in ``trace.requests``, or its id. `data` holds the block table, the stored tokens, the slots
    written in this step and the free blocks in the order in which the pool hands them out.
    Raises ValueError for a trace that is not paged, and for a step, moment or request that it does not have.
    """
    if trace.kv_cache != "paged":
        raise ValueError(f"expected a trace of a paged cache, got kv_cache={trace.kv_cache!r}")
    number = trace.index_of(request) if isinstance(request, str) else request
    if not 0 <= number < len(trace.requests):
        raise ValueError(f"expected a request in 0..{len(trace.requests) - 1}, got {number}")
    view = TableView.of(trace, step, number, moment)
    frame = Frame("page_table", width)
    left = _Left.fit(view, width)
    header_right = left.right - left.table_w / 2 + text_width(_("Block table"), 14) / 2
    right_x = max(left.right + GAP, header_right + 18)
    left_bottom = _draw_logical(frame, view, left)
    bottom = max(left_bottom, _draw_pool(frame, view, left, right_x, left_bottom))
    frame.height = int(bottom + MARGIN)
    frame.legend = legend(view)
    frame.caption = caption(view)
    frame.sentence = sentence(trace)
    frame.alt = alt(view)
    frame.data = {
        "step": step,
        "moment": moment,
        "request": number,
        "request_id": view.request_id,
        "block_size": trace.block_size,
        "block_table": view.table,
        "stored": view.stored,
        "written": [view.slot(position) for position in view.fresh] if moment != "scheduled" else [],
        "planned": [view.slot(position) for position in view.fresh] if moment == "scheduled" else [],
        "new_blocks": view.new_blocks,
        "shared_blocks": [block for block in view.table if view.is_shared(block)],
        "cached_blocks": sorted(view.cached),
        "hits": view.hits,
        "copies": [[copy.source, copy.block] for copy in view.copies],
        "forgotten": view.forgotten,
        "free_blocks": view.free,
    }
    return frame


def page_table_figure(
    trace: Trace, step: int, request: int | str = 0, moment: str = "computed", *, width: int = 900
) -> go.Figure:
    """The same picture as a Plotly figure."""
    return frame_figure(page_table_frame(trace, step, request, moment, width=width))


@dataclass(slots=True)
class _Left:
    """Geometry of the left half: logical blocks and the block table beside them."""

    cell: float
    row: float
    per_line: int
    lines: int
    table_x: float
    table_w: float
    shown: list[int | None]

    @classmethod
    def fit(cls, view: TableView, width: int) -> "_Left":
        block_size = view.trace.block_size
        per_line = min(block_size, 8)
        lines = -(-block_size // per_line)
        share = 0.36 if per_line <= 4 else 0.43
        cell = min(52.0, max(21.0, (share * width - MARGIN - 26) / per_line))
        row = 30 * lines + (10 if lines == 1 else 14)
        table_x = MARGIN + 26 + per_line * cell + 22
        table_w = max(46.0, text_width(str(view.trace.num_blocks), 14) + 18)
        limit = max(3, int((MAX_PICTURE_HEIGHT - HEADER) // row))
        return cls(cell, row, per_line, lines, table_x, table_w, _window(len(view.table), limit))

    @property
    def right(self) -> float:
        return self.table_x + self.table_w


def _window(count: int, limit: int) -> list[int | None]:
    """Logical blocks to show: the first and the last ones; None stands for those left out."""
    if count <= limit:
        return list(range(count))
    return [0, None, *range(count - (limit - 2), count)]


def _draw_logical(frame: Frame, view: TableView, left: _Left) -> float:
    block_size = view.trace.block_size
    frame.text(MARGIN, MARGIN, _("Logical blocks of {request}").format(request=view.name), size=14, bold=True)
    frame.text(left.table_x + left.table_w / 2, MARGIN, _("Block table"), size=14, bold=True, align="center")
    if not view.table:
        frame.text(MARGIN, HEADER + 20, empty_note(view), "muted")
        return HEADER + 60
    y = float(HEADER)
    for index in left.shown:
        if index is None:
            hidden = len(view.table) - len(left.shown) + 1
            frame.text(MARGIN + 26, y + 10, _("… {count} more full blocks …").format(count=hidden), "muted")
            y += 26
            continue
        frame.text(MARGIN + 16, y + 15, str(index), "muted", align="right", size=13)
        for offset in range(block_size):
            line, column = divmod(offset, left.per_line)
            position = index * block_size + offset
            shows = view.shows_text(position)
            frame.rect(
                MARGIN + 26 + column * left.cell,
                y + 30 * line,
                left.cell - 2,
                28,
                view.style(position),
                view.token(position) if shows else "",
                size=13 if left.cell >= 30 else 12,
                title=slot_title(view, position),
            )
        _draw_entry(frame, view, left, index, y)
        y += left.row
    return y


def _draw_entry(frame: Frame, view: TableView, left: _Left, index: int, y: float) -> None:
    block = view.table[index]
    is_new = block in view.new_blocks
    middle = y + 14 + 15 * (left.lines - 1)
    arrow = "link-new" if is_new else "link"
    frame.path(f"M{left.table_x - 20:.1f},{middle:.1f}L{left.table_x - 3:.1f},{middle:.1f}", arrow)
    frame.rect(
        left.table_x,
        middle - 14,
        left.table_w,
        28,
        "entry-new" if is_new else "entry-shared" if view.is_shared(block) else "entry",
        str(block),
        size=14,
        bold=True,
        title=_("Logical block {index} lies in physical block {block}").format(index=index, block=block),
    )


def _draw_pool(frame: Frame, view: TableView, left: _Left, x: float, left_bottom: float) -> float:
    frame.text(x, MARGIN, _("Physical blocks of the pool"), size=14, bold=True)
    room = frame.width - MARGIN - x
    detailed = view.trace.block_size <= 8 and view.trace.num_blocks <= 32
    place = DetailedPool(view, x, room) if detailed else CompactPool(view, x, room)
    place.draw_all(frame)
    _draw_links(frame, view, left, place)
    y = place.bottom
    if place.num_shown < view.trace.num_blocks:
        hidden = view.trace.num_blocks - place.num_shown
        frame.text(x, y + 10, _("… and {count} more blocks").format(count=hidden), "muted")
        y += 24
    # The curves come up from the table, so the queue stands below the last of them.
    return _draw_queue(frame, view, x, max(y + 12, left_bottom - left.row / 2), room)


def _draw_links(frame: Frame, view: TableView, left: _Left, pool: PoolGrid) -> None:
    """A curve from each entry of the table to its block."""
    y = float(HEADER)
    for index in left.shown:
        if index is None:
            y += 26
            continue
        block = view.table[index]
        if block < pool.num_shown:
            start = left.right + 1, y + 14 + 15 * (left.lines - 1)
            curve = pool.link(start, block)
            frame.path(curve, "link-new" if block in view.new_blocks else "link", link=f"block:{block}")
        y += left.row


def _draw_queue(frame: Frame, view: TableView, x: float, y: float, room: float) -> float:
    """The free blocks in the order in which the pool hands them out."""
    label = _("Free, next first:")
    frame.text(x, y + 11, label, "muted")
    at = x + text_width(label) + 12
    for place, block in enumerate(view.free):
        w = text_width(str(block), 13) + 14
        if at + w > x + room - 24:
            frame.text(at, y + 11, "…", "muted")
            break
        frame.rect(at, y, w, 22, "next" if place == 0 else "cached" if block in view.cached else "free", str(block))
        at += w + 4
    if not view.free:
        frame.text(at, y + 11, _("none"), "muted")
    return y + 26
