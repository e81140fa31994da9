"""The pool of a page table as a grid of physical blocks: every slot where there is room, else a tile a block."""

from typing import Any

from servelab.figures.frame import Frame, fit, rects_path, request_label, text_width
from servelab.figures.table_view import TableView
from servelab.translation import _

MARGIN, HEADER = 16, 40
MAX_PICTURE_HEIGHT = 440
TILES = ((46, 30), (38, 26), (30, 22), (22, 16), (16, 12), (12, 9), (9, 7))
MAX_TILES = 4096


class PoolGrid:
    """The pool as a grid of blocks. Subclasses draw one block."""

    def __init__(self, view: TableView, x: float, w: float, h: float, columns: int, num_shown: int) -> None:
        self.view, self.x, self.w, self.h = view, x, w, h
        self.columns, self.num_shown = max(1, columns), num_shown
        self.bottom = HEADER + -(-num_shown // self.columns) * h

    def corner(self, block: int) -> tuple[float, float]:
        row, column = divmod(block, self.columns)
        return self.x + column * self.w, HEADER + row * self.h

    def draw(self, frame: Frame, block: int) -> None:
        raise NotImplementedError

    def link(self, start: tuple[float, float], block: int) -> str:
        """Path data of a curve from the table to the left edge of a block."""
        x, y = self.corner(block)
        return curve(start, (x - 1, y + self.h / 2 - 1))

    def draw_all(self, frame: Frame) -> None:
        """Draw every block shown, and the grid of what the learner can point at."""
        for block in range(self.num_shown):
            self.draw(frame, block)
        frame.marks.append({"shape": "grid", **self.grid()})

    def grid(self) -> dict[str, Any]:
        """Where each block can be pointed at, what kind it is ("x" own, "o" other, "." free), how it is read out."""
        view = self.view
        own, owned = set(view.table), view.owners
        kinds = "".join("x" if b in own else "o" if b in owned else "." for b in range(self.num_shown))
        return {
            "id": "block",
            "x": self.x,
            "y": HEADER,
            "step": [self.w, self.h],
            "cell": [0, 0, self.w - 1, self.h - 1],
            "columns": self.columns,
            "kinds": kinds,
            "labels": {
                "x": _("Physical block {block}: holds tokens of {request}").replace("{request}", view.name),
                "o": _("Physical block {block}: held by another request"),
                ".": _("Physical block {block}: free"),
            },
        }


class DetailedPool(PoolGrid):
    """Every slot of every block, with the chosen request's tokens in them."""

    def __init__(self, view: TableView, x: float, room: float) -> None:
        block_size = view.trace.block_size
        # Words want 34 pixels a slot; where that makes too many rows, 24 have to do.
        for wanted, max_rows in ((34, 6), (24, 99)):
            fitting = [count for count in (4, 3, 2) if (room / count - 14) / block_size >= wanted]
            columns = fitting[0] if fitting else 1
            if -(-view.trace.num_blocks // columns) <= max_rows:
                break
        self.slot = (room / columns - 14) / block_size
        self.slot = min(self.slot, 46.0)
        super().__init__(view, x, block_size * self.slot + 14, 58, columns, view.trace.num_blocks)

    def draw(self, frame: Frame, block: int) -> None:
        x, y = self.corner(block)
        view, block_size = self.view, self.view.trace.block_size
        owner = view.owners.get(block)
        frame.text(x, y + 8, str(block), "ink" if block in view.table else "muted", size=13, bold=block in view.table)
        if owner is not None and block not in view.table:
            name = fit(request_label(view.trace.requests[owner].request_id), block_size * self.slot - 26, 12)
            frame.text(x + block_size * self.slot - 4, y + 8, name, "muted", size=12, align="right")
        stored = view.state.requests[owner].num_computed_tokens if owner is not None else 0
        for offset in range(block_size):
            if block in view.table:
                position = view.table.index(block) * block_size + offset
                style, text = view.style(position), view.token(position) if view.shows_text(position) else ""
            else:
                index = view.state.requests[owner].block_table.index(block) if owner is not None else 0
                taken = owner is not None and index * block_size + offset < stored
                style, text = ("other" if taken else "free"), ""
            frame.rect(x + offset * self.slot, y + 17, self.slot - 2, 28, style, text, size=12)
        if block in view.table:
            frame.rect(x - 2, y + 15, block_size * self.slot + 2, 32, "outline")

    def grid(self) -> dict[str, Any]:
        return {**super().grid(), "cell": [-2, 15, self.view.trace.block_size * self.slot + 2, 32]}

    def link(self, start: tuple[float, float], block: int) -> str:
        x, y = self.corner(block)
        lane, middle = y - 3, y + 31
        if x == self.x:
            return curve(start, (x - 3, middle))
        corners = f"L{x - 7:.1f},{lane:.1f}L{x - 7:.1f},{middle:.1f}L{x - 3:.1f},{middle:.1f}"
        return curve(start, (self.x - 2, lane)) + corners


class CompactPool(PoolGrid):
    """A tile a block; of the chosen request's blocks, how full they are."""

    def __init__(self, view: TableView, x: float, room: float) -> None:
        num_shown = min(view.trace.num_blocks, MAX_TILES)
        for w, h in TILES:
            columns = int(room // w)
            if columns and -(-num_shown // columns) * h <= MAX_PICTURE_HEIGHT - HEADER - 60:
                break
        super().__init__(view, x, w, h, columns, num_shown)

    def draw_all(self, frame: Frame) -> None:
        gap = 3 if self.w >= 22 else 1
        self.tile = (self.w - gap, self.h - gap)
        for style, is_owned in (("free", False), ("other", True)):
            blocks = (b for b in range(self.num_shown) if (b in self.view.owners) is is_owned)
            frame.path(rects_path((*self.corner(b), *self.tile) for b in blocks), style)
        super().draw_all(frame)

    def draw(self, frame: Frame, block: int) -> None:
        x, y = self.corner(block)
        (w, h), view, block_size = self.tile, self.view, self.view.trace.block_size
        text = str(block) if text_width(str(view.trace.num_blocks - 1), 12) + 4 <= w and h >= 15 else ""
        ink = "muted"
        if block in view.table:
            first = view.table.index(block) * block_size
            filled = min(block_size, max(0, max(view.stored, view.fresh.stop) - first))
            fresh = [position for position in view.fresh if first <= position < first + block_size]
            style = view.style(fresh[-1] if fresh else first)
            frame.rect(x, y, w, h, "empty")
            frame.rect(x, y, max(2.0, w * filled / block_size), h, style)
            frame.rect(x, y, w, h, "outline")
            ink = style if filled * 2 > block_size else "ink"
        if text:
            frame.text(x + w / 2, y + h / 2, text, ink, size=12, align="center", bold=block in view.table)


def curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = start, end
    bend = min(60.0, (x1 - x0) / 2)
    return f"M{x0:.1f},{y0:.1f}C{x0 + bend:.1f},{y0:.1f},{x1 - bend:.1f},{y1:.1f},{x1:.1f},{y1:.1f}"
