"""The pool of a page table as a grid of physical blocks: every slot where there is room, else a tile a block."""

from typing import Any

from servelab.figures.frame import Frame, fit, line_path, rects_path, text_width, token_label
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
        """Draw every block shown, the copies that a write made, and the grid of what the learner can point at."""
        for block in range(self.num_shown):
            self.draw(frame, block)
        for copy in self.view.copies:
            if max(copy.source, copy.block) < self.num_shown:
                draw_copy(frame, self.box(copy.source), self.box(copy.block))
        frame.marks.append({"shape": "grid", **self.grid()})

    def box(self, block: int) -> tuple[float, float, float, float]:
        """The rectangle of a block's slots: x, y, w, h."""
        x, y = self.corner(block)
        dx, dy, w, h = self.grid()["cell"]
        return x + dx, y + dy, w, h

    def kind(self, block: int) -> str:
        """Whose a block is, as a letter: "s" own and shared, "x" own alone, "o" others', "c" kept, "." free."""
        if block in self.view.table:
            return "s" if self.view.is_shared(block) else "x"
        if block in self.view.owners:
            return "o"
        return "c" if block in self.view.cached else "."

    def grid(self) -> dict[str, Any]:
        """Where each block can be pointed at, what kind it is, and how it is read out."""
        view = self.view
        kinds = "".join(map(self.kind, range(self.num_shown)))
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
                "s": _("Physical block {block}: shared by {request} and others").replace("{request}", view.name),
                "o": _("Physical block {block}: held by another request"),
                "c": _("Physical block {block}: no owner, its content is kept"),
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
        own, shared = block in view.table, view.is_shared(block)
        frame.text(x, y + 8, str(block), "ink" if own else "muted", size=13, bold=own)
        if note := self.note(block):
            note = fit(note, block_size * self.slot - 26, 12)
            frame.text(x + block_size * self.slot - 4, y + 8, note, "ink" if own else "muted", size=12, align="right")
        for offset, (style, text) in enumerate(self.slots(block)):
            frame.rect(x + offset * self.slot, y + 17, self.slot - 2, 28, style, text, size=12)
        if own or shared:
            frame.rect(x - 2, y + 15, block_size * self.slot + 2, 32, "shared" if shared else "outline")

    def note(self, block: int) -> str:
        """What stands beside a block's number: the owners of a block that is not the request's own alone."""
        if block in self.view.cached:
            return _("kept")
        if block in self.view.table and not self.view.is_shared(block):
            return ""
        return self.view.owner_names(block)

    def slots(self, block: int) -> list[tuple[str, str]]:
        """Style and text of each slot of a block."""
        view, block_size = self.view, self.view.trace.block_size
        if block in view.table:
            first = view.table.index(block) * block_size
            positions = range(first, first + block_size)
            return [(view.style(at), view.token(at) if view.shows_text(at) else "") for at in positions]
        if block in view.owners:
            filled = view.num_filled(block)
            texts = view.texts_in(block)[:filled] if not view.table else []
            shown = [token_label(text) for text in texts] + [""] * (filled - len(texts))
            return [("other", text) for text in shown] + [("free", "")] * (block_size - filled)
        if block in view.cached:
            return [("cached", token_label(text)) for text in view.texts_in(block)]
        return [("free", "")] * block_size

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
        kinds = "".join(map(self.kind, range(self.num_shown)))
        for style, letters in (("free", "."), ("cached", "c"), ("other", "osx")):
            blocks = (block for block, letter in enumerate(kinds) if letter in letters)
            frame.path(rects_path((*self.corner(block), *self.tile) for block in blocks), style)
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
            frame.rect(x, y, w, h, "shared" if view.is_shared(block) else "outline")
            ink = style if filled * 2 > block_size else "ink"
        if text:
            frame.text(x + w / 2, y + h / 2, text, ink, size=12, align="center", bold=block in view.table)


def draw_copy(frame: Frame, source: tuple[float, float, float, float], copy: tuple[float, float, float, float]) -> None:
    """An arrow from the block that several tables name to the copy that one of them names now."""
    (x0, y0, w0, h0), (x1, y1, w1, h1) = source, copy
    start, leave = (y0 + h0, 1) if y1 >= y0 else (y0, -1)
    tip, into = (y1, 1) if y1 > y0 else (y1 + h1, -1)
    x, end = x0 + w0 / 2, x1 + w1 / 2
    turn, stem = start + 16 * leave, tip - 16 * into
    frame.path(f"M{x:.1f},{start:.1f}C{x:.1f},{turn:.1f},{end:.1f},{stem:.1f},{end:.1f},{tip - 6 * into:.1f}", "copy")
    frame.path(line_path([(end, tip), (end - 6, tip - 9 * into), (end + 6, tip - 9 * into), (end, tip)]), "copy-head")


def curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = start, end
    bend = min(60.0, (x1 - x0) / 2)
    return f"M{x0:.1f},{y0:.1f}C{x0 + bend:.1f},{y0:.1f},{x1 - bend:.1f},{y1:.1f},{x1:.1f},{y1:.1f}"
