"""What the page table says in words: captions, alternative text, the sentence to take away, the legend."""

from servelab.figures.table_view import TableView
from servelab.trace import Fork, Hit, Trace
from servelab.translation import _

FEW = 8  # blocks that a sentence names one by one

__all__ = ["alt", "caption", "empty_note", "legend", "sentence", "slot_title"]


def sentence(trace: Trace) -> str:
    """What the reader can say afterwards: about the table, and where blocks are shared, about sharing."""
    if any(isinstance(event, Hit | Fork) for step in trace.steps for event in step.events):
        return _(
            "Two tables may name the same block: it is computed once and stored once, and copied only when one of its "
            "owners writes into it."
        )
    return _(
        "The block table says which physical block holds each logical block, so neighbouring tokens may lie "
        "anywhere in the pool."
    )


def alt(view: TableView) -> str:
    """The finding, for those who do not see the picture."""
    values = {"request": view.name, "stored": view.stored, "blocks": len(view.table), "table": view.table}
    parts = [
        _("Page table of request {request}: {stored} stored tokens in {blocks} blocks, block table {table}.").format(
            **values
        )
    ]
    shared = [block for block in view.table if view.is_shared(block)]
    if len(shared) > FEW:
        parts.append(_("{count} of its blocks are shared.").format(count=len(shared)))
        shared = []
    for block in shared:
        others = view.owner_names(block, others=True)
        parts.append(_("Block {block} is shared with {others}.").format(block=block, others=others))
    if view.cached:
        parts.append(_("Kept without an owner: {blocks}.").format(blocks=_numbers(sorted(view.cached))))
    return " ".join(parts)


def caption(view: TableView) -> str:
    """What happens in this frame."""
    step = view.step + 1
    if not view.table:
        return _("Step {step}. {note}").format(step=step, note=empty_note(view))
    fresh = view.fresh
    values = {"step": step, "request": view.name, "stored": view.stored, "parent": view.parent}
    if view.parent:
        return _(
            "Step {step}. {request} begins with the whole table of {parent}: {stored} tokens are there already."
        ).format(**values)
    if not fresh:
        return _("Step {step}. {request} computes no token in this step; it holds {stored} tokens.").format(**values)
    block, slot = view.slot(fresh[-1])
    values |= {"block": block, "slot": slot, "first": fresh[0] + 1, "last": fresh[-1] + 1}
    if view.moment == "scheduled":
        return " ".join([_("Step {step}, before computing.").format(**values), *_handed_out(view)])
    if len(fresh) > 1:
        message = _(
            "Step {step}. {request}'s tokens {first} to {last} are written, the last one into slot {slot} of physical "
            "block {block}."
        )
        return message.format(**values)
    return _("Step {step}. {request}'s token {last} is written into slot {slot} of physical block {block}.").format(
        **values
    )


def _handed_out(view: TableView) -> list[str]:
    """What the request got before its tokens are computed, a sentence each."""
    name, parts = view.name, []
    if view.hits:
        tokens = len(view.hits) * view.trace.block_size
        if len(view.hits) == 1:
            message = _("{request} takes over block {blocks}: its first {tokens} tokens are not computed again.")
        else:
            message = _("{request} takes over blocks {blocks}: its first {tokens} tokens are not computed again.")
        parts.append(message.format(request=name, blocks=_numbers(view.hits), tokens=tokens))
    for copy in view.copies:
        message = _("Block {source} is {others}'s too, so {request} writes into a copy: block {block}.")
        others = view.owner_names(copy.source)
        parts.append(message.format(source=copy.source, others=others, request=name, block=copy.block))
    copied = {copy.block for copy in view.copies}
    if new := [block for block in view.new_blocks if block not in copied]:
        parts.append(_("{request} gets block {new} from the pool.").format(request=name, new=_numbers(new)))
    if view.forgotten:
        message = _("What block {blocks} had kept is forgotten.")
        parts.append(message.format(blocks=_numbers(view.forgotten)))
    return parts or [_("{request}'s last block has room: no new block.").format(request=name)]


def empty_note(view: TableView) -> str:
    """Why the request has no blocks."""
    status = view.own.status
    if status == "waiting":
        return _("{request} waits: no blocks yet.").format(request=view.name)
    if status == "finished":
        return _("{request} has finished: it gave its blocks back.").format(request=view.name)
    return _("{request} has not arrived yet.").format(request=view.name)


def slot_title(view: TableView, position: int) -> str:
    """What a cell says when it is pointed at."""
    block, slot = view.slot(position)
    place = _("slot {slot} of physical block {block}").format(slot=slot, block=block)
    if not view.shows_text(position):
        return place
    kind = _("prompt") if position < view.num_prompt else _("output")
    text = view.texts[position] if position < len(view.texts) else ""
    return _("token {number} ({kind}) {text}: {place}").format(
        number=position + 1, kind=kind, text=repr(text), place=place
    )


def legend(view: TableView) -> list[tuple[str, str]]:
    """(style, label) of what can be seen."""
    entries = [("prompt", _("prompt token")), ("output", _("output token"))]
    if view.moment == "scheduled":
        entries.append(("next", _("to be written in this step; next free block")))
    else:
        entries.append(("new", _("written in this step")))
    entries += [("empty", _("empty slot")), ("other", _("other requests")), ("free", _("free"))]
    if any(map(view.is_shared, view.owners)):
        entries.append(("shared", _("several owners")))
    if view.cached:
        entries.append(("cached", _("no owner, content kept")))
    return entries


def _numbers(blocks: list[int]) -> str:
    """Block numbers in a sentence; of many the first and the last."""
    shown = [str(block) for block in blocks]
    return ", ".join(shown if len(shown) <= FEW else [*shown[:3], "…", shown[-1]])
