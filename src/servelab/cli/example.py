"""`servelab simulate --example`: the lesson's three examples, printed with everything they assume."""

from __future__ import annotations

import dataclasses

import rich
import typer

from servelab.cli.simulate import assumptions_table, make_table, memory_table
from servelab.simulate import long_contexts, one_user, users_on_a_card
from servelab.translation import _

CAUTIOUS_SHARE = 0.9  # what servers take of a GPU unless they are told otherwise


def show_1() -> None:
    """How many users one card serves at once."""
    found = users_on_a_card()
    card = found.card
    rich.print(assumptions_table(card))
    rich.print(memory_table(card.budget, card.block_size))
    title = _("Users at once, by what each holds")
    reserve = _("{tokens:,} reserved each").format(tokens=found.reserved_tokens)
    table = make_table(title, _("Tokens of a user"), reserve, _("paged"))
    for tokens, users in found.fit.items():
        table.add_row(f"{tokens:,}", *map(str, users))
    rich.print(table)
    title = _("The same simulated: means while somebody waits")
    columns = (_("Requests"), _("Cache"), _("at once"), _("tokens held each"), _("tokens/s"), _("preemptions"))
    table = make_table(title, *columns)
    for load in found.crowded:
        for name, result in ((_("reserved"), load.reserved), (_("paged"), load.paged)):
            crowd = result.running_when_full
            numbers = (f"{crowd.mean_requests:.1f}", f"{crowd.mean_tokens:,.0f}", f"{result.output_tokens_per_s:,.0f}")
            table.add_row(load.name, name, *numbers, f"{result.num_preemptions:,}")
    rich.print(table)
    cautious = dataclasses.replace(card, usable_share=CAUTIOUS_SHARE)
    typer.echo(
        _(
            "The fewer tokens a user holds, the more paging gives; where all are nearly as long as what is reserved, "
            "it gives next to nothing. With usable_share {share} only {gb:.1f} GB are left for KV, and reserving "
            "serves {users}."
        ).format(
            share=CAUTIOUS_SHARE,
            gb=cautious.budget.kv_bytes / 1e9,
            users=cautious.users(found.reserved_tokens, found.reserved_tokens),
        )
    )


def show_2() -> None:
    """One user waits for an answer, with and without speculation; then more of them."""
    found = one_user()
    rich.print(assumptions_table(found.card, found.drafting))
    title = _("{prompt} prompt and {output} output tokens a request").format(
        prompt=found.length.prompt_tokens, output=found.length.output_tokens
    )
    table = make_table(title, _("Users"), _("tokens/s each, plain"), _("with drafts"), _("faster"))
    for users, plain in found.plain.items():
        speeds = [f"{result.output_tokens_per_s / users:.1f}" for result in (plain, found.drafted[users])]
        table.add_row(str(users), *speeds, f"{found.speedup(users):.2f} x")
    rich.print(table)
    first_ms = [1e3 * result.mean_ttft_s for result in (found.plain[1], found.drafted[1])]
    typer.echo(
        _(
            "One user gains most: a step reads all weights whether it checks one token or five. The first token gains "
            "nothing ({plain:.0f} ms without drafts, {drafted:.0f} ms with them). A full card loses: checking drafts "
            "takes the arithmetic that batching already uses."
        ).format(plain=first_ms[0], drafted=first_ms[1])
    )


def show_3() -> None:
    """Long contexts, with K and V in 16 bit and in FP8."""
    found = long_contexts()
    rich.print(assumptions_table(found.cards["16 bit"]))
    for card in found.cards.values():
        rich.print(memory_table(card.budget, card.block_size))
    columns = (_("K and V in"), _("bytes a token"), _("users that fit"), _("at once, simulated"), _("tokens/s"))
    table = make_table(_("Contexts of {tokens:,} tokens").format(tokens=found.num_tokens), *columns)
    for name, card in found.cards.items():
        result = found.simulations[name]
        running = f"{result.running_when_full.mean_requests:.1f}"
        per_token, fit = f"{card.budget.bytes_per_token:,}", str(found.users[name])
        table.add_row(name, per_token, fit, running, f"{result.output_tokens_per_s:,.0f}")
    table.add_row(_("16 bit, without shared heads"), f"{found.mha_bytes_per_token:,}", str(found.mha_users), "", "")
    rich.print(table)
    typer.echo(
        _(
            "FP8 halves the bytes of a token, so that about twice as many fit. Sharing K and V among query heads saves "
            "more, and it is part of the model: a server cannot switch it on."
        )
    )
