"""Where a request's tokens go: the questions of the page table, read from the trace.

Which block takes the next token, and, where blocks are shared: which blocks a new request takes over, and where a
write to a block with several owners goes.
"""

from collections.abc import Sequence
from itertools import takewhile

from servelab.figures.frame import request_label
from servelab.trace import Allocate, Copy, Event, Evict, Fork, Hit, Preempt, State, Trace
from servelab.translation import _
from servelab.widgets.decision import Decision


def block_steps(trace: Trace, request: int) -> list[int]:
    """Steps at which it is worth asking where the request's tokens go.

    Those that store several tokens, the first output token, the token that fills a block, the one after it, and those
    that take blocks over or copy one.
    """
    steps, is_first_decode = [], True
    for step, state in enumerate(trace.states()):
        own = state.requests[request]
        if own.num_scheduled_tokens:
            at_boundary = (own.num_computed_tokens - 1) % trace.block_size in (0, trace.block_size - 1)
            is_shared = any(isinstance(event, Hit | Copy) for event in _events(trace, request, step))
            if own.num_scheduled_tokens > 1 or at_boundary or is_first_decode or is_shared:
                steps.append(step)
            is_first_decode = own.num_scheduled_tokens > 1
    return steps


def block_decision(trace: Trace, request: int, step: int) -> Decision:
    """The blocks that `request` takes over in `step`, or else the block that takes the last token it stores.

    Raises ValueError when the request stores nothing in that step.
    """
    if not trace.state_at(step, "computed").requests[request].num_scheduled_tokens:
        raise ValueError(f"expected a step in which request {request} stores a token, got step {step}")
    hits = [event.block for event in _events(trace, request, step) if isinstance(event, Hit)]
    if hits and not _was_preempted(trace, request, step):
        return _takeover(trace, request, step, hits)
    return _write(trace, request, step)


def _events(trace: Trace, request: int, step: int) -> list[Event]:
    return [event for event in trace.steps[step].events if getattr(event, "request", None) == request]


def _was_preempted(trace: Trace, request: int, step: int) -> bool:
    """Whether the request comes back, and finds blocks that it computed itself."""
    return any(isinstance(event, Preempt) for at in range(step) for event in _events(trace, request, at))


def _name(trace: Trace, request: int) -> str:
    return request_label(trace.requests[request].request_id)


def _names(trace: Trace, requests: Sequence[int]) -> str:
    return ", ".join(_name(trace, request) for request in requests)


def _write(trace: Trace, request: int, step: int) -> Decision:
    own, size = trace.state_at(step, "computed").requests[request], trace.block_size
    last, count = own.num_computed_tokens - 1, own.num_scheduled_tokens
    block, slot = own.block_table[last // size], last % size
    if count == 1:
        prompt = _("{request}'s token {last} is next. Which physical block takes it? Point at the block.")
    else:
        prompt = _("{request}'s tokens {first} to {last} are next. Which physical block takes token {last}?")
    values = {"request": _name(trace, request), "first": last + 2 - count, "last": last + 1, "size": size}
    values |= {"block": block, "slot": slot, "before": last, "full": last // size, "rest": last % size}
    events = trace.steps[step].events
    copy = next((event for event in _events(trace, request, step) if isinstance(event, Copy)), None)
    copy = copy if copy is not None and copy.block == block else None
    is_new = copy is not None or any(isinstance(event, Allocate) and event.block == block for event in events)
    before = trace.state_at(step - 1, "end") if step else State([])
    others = [
        owner for owner, _index in before.block_owners().get(copy.source if copy else block, ()) if owner != request
    ]
    if copy is not None:
        values |= {"source": copy.source, "others": _names(trace, others)}
        because = _(
            "Token {last} belongs behind the {rest} tokens in block {source}, but the block is {others}'s too. So the "
            "write goes to a copy: slot {slot} of block {block}, which has been free for longest."
        )
    elif count > 1:
        because = _(
            "Token {last} goes to slot {slot} of block {block}: {before} tokens before it = {full} x {size} + {rest}."
        )
    elif is_new:
        because = _(
            "Token {last} goes to slot {slot} of block {block}: {before} tokens before it = {full} x {size} + 0, so "
            "the last block is full, and block {block} has been free for longest."
        )
    else:
        because = _(
            "Token {last} goes to slot {slot} of block {block}: {before} tokens before it = {full} x {size} + {rest}, "
            "so {rest} slots of the last block are taken and there is room."
        )
    parts = [because.format(**values)]
    if others and copy is None and not is_new:
        message = _("{others} shared it until this step, and took a copy: now {request} writes where it is.")
        parts.append(message.format(others=_names(trace, others), request=values["request"]))
    if any(isinstance(event, Evict) and event.block == block for event in events):
        parts.append(_("What block {block} had kept is forgotten.").format(block=block))
    return Decision(
        step=step,
        prompt=prompt.format(**values),
        rule=_rule(trace),
        answer=f"block:{block}",
        because=" ".join(parts),
        pointing="block",
        reasons=_write_reasons(trace, request, before, block, is_new, copy),
    )


def _rule(trace: Trace) -> str:
    rule = _(
        "A request takes a new block only when its last one is full. The pool hands out the block that has "
        "been free for longest."
    )
    if any(isinstance(event, Fork) for step in trace.steps for event in step.events):
        return rule + " " + _("Nobody writes into a block that others read.")
    return rule


def _write_reasons(
    trace: Trace, request: int, before: State, block: int, is_new: bool, copy: Copy | None
) -> dict[str, str]:
    """What is wrong with each other block."""
    owners = before.block_owners()
    own = before.requests[request].block_table if before.requests else []
    reasons = {}
    for other in range(trace.num_blocks):
        owner = owners.get(other)
        if copy is not None and other == copy.source:
            text = _("Block {other} has the slot, but others need that slot for a token of their own.")
        elif other in own:
            text = _("Block {other} is {request}'s already, and full.")
        elif owner is not None:
            text = _("Block {other} holds tokens of {owner}.")
        elif is_new:
            text = _("A free block is needed, but block {other} is not the one that has been free for longest.")
        else:
            text = _("Block {other} is free, but {request}'s last block still has room.")
        owner_name = _name(trace, owner[0][0]) if owner else ""
        reasons[f"block:{other}"] = text.format(other=other, request=_name(trace, request), owner=owner_name)
    return reasons


def _takeover(trace: Trace, request: int, step: int, hits: list[int]) -> Decision:
    """Which blocks of the prefix cache a new request begins with."""
    first = next(number for number, event in enumerate(trace.steps[step].events) if isinstance(event, Hit))
    before = trace.state_before(step, first)
    donor, common = _nearest(trace, before, request)
    size, total = trace.block_size, trace.requests[request].num_prompt_tokens
    taken = len(hits) * size
    values = {"request": _name(trace, request), "donor": _name(trace, donor), "common": common, "total": total}
    values |= {"blocks": ", ".join(map(str, hits)), "taken": taken, "next": taken + 1, "end": taken + size}
    prompt = _("{request} arrives with {total} prompt tokens, and the first {common} are {donor}'s too.")
    if taken + size > total:
        why = _("The tokens behind them do not fill a block.")
    elif common < taken + size:
        why = _("The next block would need tokens {next} to {end} to be the same, and only the first {common} are.")
    elif taken + size == total:
        why = _("The last token of a prompt is always computed, so the block that ends with it is not taken over.")
    else:
        why = _("The block behind them can no longer be found.")
    if len(hits) == 1:
        ask = _("Which block can it take over? Point at it.")
        because = _("Block {blocks}: {donor} computed these {taken} tokens already.")
    else:
        ask = _("Which blocks can it take over? Point at the last of them.")
        because = _("Blocks {blocks}: {donor} computed these {taken} tokens already.")
    return Decision(
        step=step,
        prompt=f"{prompt.format(**values)} {ask}",
        rule=_("Only full blocks can be found, from the first token on; something is always left to compute."),
        answer=f"block:{hits[-1]}",
        because=f"{because} {why}".format(**values),
        pointing="block",
        reasons=_takeover_reasons(trace, before, hits),
    )


def _nearest(trace: Trace, before: State, request: int) -> tuple[int, int]:
    """The earlier request that begins most like this one, and how many tokens the two have in common."""
    prompt = trace.requests[request].prompt_token_ids
    found = (0, 0)
    for other, state in enumerate(before.requests):
        if other != request and state.status in ("running", "finished"):
            record = trace.requests[other]
            pairs = zip(prompt, record.prompt_token_ids + record.output_token_ids, strict=False)
            common = sum(1 for _pair in takewhile(lambda pair: pair[0] == pair[1], pairs))
            found = max(found, (common, -other))
    return -found[1], found[0]


def _takeover_reasons(trace: Trace, before: State, hits: list[int]) -> dict[str, str]:
    reasons = {}
    for other in range(trace.num_blocks):
        if other in hits:
            text = _("Block {other} is one of them, but not the last.")
        elif other in before.findable:
            text = _("Block {other} holds other tokens, or stands behind other tokens.")
        elif other in before.free:
            text = _("Block {other} is free and holds nothing that can be found.")
        else:
            text = _("Block {other} is not full: only full blocks can be found.")
        reasons[f"block:{other}"] = text.format(other=other)
    return reasons
