"""`servelab simulate`: a model on a GPU that nobody here owns, under a load, on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from servelab.translation import _

if TYPE_CHECKING:
    from rich.table import Table

    from servelab.costs import MemoryBudget, RequestLength
    from servelab.simulate import Arrival, Card, ClosedLoop, Drafting, Simulation

EXAMPLES = (1, 2, 3)


@dataclass(frozen=True)
class LoadOptions:
    """requests: how many. prompt_tokens and output_tokens for equal lengths; else a long tail with mean and maximum.

    rate: arrivals a second; users: who wait for their answers; with neither all come at once.
    """

    requests: int
    mean_tokens: float
    max_tokens: int
    prompt_tokens: int | None
    output_tokens: int | None
    rate: float | None
    users: int | None
    seed: int


def run(
    card_options: Mapping[str, Any],
    engine_options: Mapping[str, Any],
    load_options: LoadOptions,
    draft_options: tuple[int, float, float],
    json_file: str | None = None,
    trace_file: str | None = None,
) -> None:
    """Simulate with a progress bar; print assumptions, memory and result.

    Raises ValueError for options that cannot be, OSError for a file that cannot be written.
    """
    import dataclasses

    import rich

    from servelab.simulate import Drafting, simulate

    for path in (json_file, trace_file):  # before anything takes time
        if path is not None:
            check_file(path)
    card = make_card(card_options)
    k, acceptance, draft_cost = draft_options
    drafting = Drafting(k, acceptance, draft_cost) if k else None
    config = card.config(engine_options["kv_cache"], trace=trace_file is not None)
    config = dataclasses.replace(config, **engine_options)
    load = make_load(load_options)
    result = simulate(card.deployment, config, load, drafting=drafting, seed=load_options.seed, progress=True)
    rich.print(assumptions_table(card, drafting))
    rich.print(memory_table(card.budget, card.block_size))
    rich.print(result_table(result))
    if json_file is not None:
        content = {
            "assumptions": dataclasses.asdict(card),
            "load": dataclasses.asdict(load_options),
            "drafting": None if drafting is None else dataclasses.asdict(drafting),
            "result": result.summary(),
            "requests": rows(result),
        }
        Path(json_file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        typer.echo(_("The numbers are in {path}.").format(path=json_file))
    if trace_file is not None and result.trace is not None:
        result.trace.save(trace_file)
        typer.echo(_('Play the trace with PageTableWidget(Trace.load("{path}")).').format(path=trace_file))


def check_file(path: str) -> None:
    """Raises ValueError unless a file could be written there."""
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(_("expected a folder to write {path} to, got none there").format(path=path))
    if Path(path).is_dir():
        raise ValueError(_("expected a file to write to, got a folder: {path}").format(path=path or "."))


def show_example(number: int) -> None:
    """Print one of the lesson's examples. Raises ValueError for a number that none has."""
    from servelab.cli import example

    if number not in EXAMPLES:
        raise ValueError(_("expected --example as one of {names}, got {number}").format(names=EXAMPLES, number=number))
    getattr(example, f"show_{number}")()


def make_card(options: Mapping[str, Any]) -> Card:
    """Names may be shortened: "h100" is enough where one name begins so. Raises ValueError for any other."""
    from servelab.costs import GPU_SPECS, MODEL_SPECS
    from servelab.simulate import Card

    named = {"model": full_name(MODEL_SPECS, options["model"]), "gpu": full_name(GPU_SPECS, options["gpu"])}
    return Card(**{**options, **named})


def full_name(table: Mapping[str, object], name: str) -> str:
    found = [known for known in table if known.lower().startswith(name.lower())]
    if name in table:
        return name
    if len(found) != 1:
        raise ValueError(_("expected one of {names}, got {name!r}").format(names=", ".join(table), name=name))
    return found[0]


def make_load(options: LoadOptions) -> list[Arrival] | ClosedLoop:
    from servelab.simulate import ClosedLoop, arrive_at_once, arrive_at_rate

    if options.rate is not None and options.users is not None:
        raise ValueError(
            _("expected --rate or --users, got both: {rate} and {users}").format(rate=options.rate, users=options.users)
        )
    lengths = make_lengths(options)
    if options.users is not None:
        return ClosedLoop(lengths, options.users)
    if options.rate is not None:
        return arrive_at_rate(lengths, options.rate, seed=options.seed)
    return arrive_at_once(lengths)


def make_lengths(options: LoadOptions) -> list[RequestLength]:
    from servelab.costs import workload
    from servelab.simulate import equal_lengths

    prompt_tokens, output_tokens = options.prompt_tokens, options.output_tokens
    if prompt_tokens is None and output_tokens is None:
        mean, most = options.mean_tokens, options.max_tokens
        return workload(options.requests, mean_tokens=mean, max_tokens=most, seed=options.seed)
    if prompt_tokens is None or output_tokens is None:
        raise ValueError(
            _("expected --prompt-tokens and --output-tokens, got {prompt} and {output}").format(
                prompt=prompt_tokens, output=output_tokens
            )
        )
    return equal_lengths(options.requests, prompt_tokens, output_tokens)


def rows(result: Simulation) -> list[dict[str, float | int | None]]:
    """Of each request: when it came, how long it was, and what it waited for."""
    return [
        {
            "arrival_s": one.arrival.time_s,
            "prompt_tokens": one.arrival.prompt_tokens,
            "output_tokens": one.arrival.output_tokens,
            "ttft_s": one.ttft_s,
            "tpot_s": one.tpot_s,
            "finish_s": one.finish_s,
            "preemptions": one.num_preemptions,
        }
        for one in result.served
    ]


def make_table(title: str, *columns: str) -> Table:
    """The first column is text, the others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def assumptions_table(card: Card, drafting: Drafting | None = None) -> Table:
    """Everything that is taken for granted, by the name of its parameter."""
    import dataclasses

    table = make_table(_("What is assumed (nothing here is measured)"), _("Parameter"), _("Value"))
    values = dataclasses.asdict(card) | {"memory_bytes": card.budget.memory_bytes}
    roofline = card.deployment.roofline
    values |= {"flops_per_s": roofline.flops_per_s, "bandwidth_bytes_per_s": roofline.bandwidth_bytes_per_s}
    values |= {} if drafting is None else dataclasses.asdict(drafting)
    for name, value in values.items():
        table.add_row(name, readable(value))
    return table


def readable(value: object) -> str:
    if value is None:
        return _("as the GPU's")
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1e6 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def memory_table(budget: MemoryBudget, block_size: int) -> Table:
    table = make_table(_("Memory"), _("For"), _("GB"))
    lines = {
        _("all"): budget.memory_bytes,
        _("- not usable"): budget.unusable_bytes,
        _("- weights of the layers"): budget.layer_bytes,
        _("- embeddings and output projection"): budget.embedding_bytes,
        _("- activations of the largest step"): budget.activation_bytes,
        _("= KV cache"): budget.kv_bytes,
    }
    for name, num_bytes in lines.items():
        table.add_row(name, f"{num_bytes / 1e9:,.2f}")
    table.caption = _("{tokens:,} tokens at {bytes:,} bytes each; {blocks:,} blocks of {size}").format(
        tokens=budget.kv_tokens, bytes=budget.bytes_per_token, blocks=budget.num_blocks(block_size), size=block_size
    )
    return table


def result_table(result: Simulation) -> Table:
    table = make_table(_("Served, on the simulated clock"), _("What"), _("Value"))
    summary = result.summary()
    lines = {
        _("requests"): f"{summary['requests']:,}",
        _("output tokens per second"): f"{summary['output_tokens_per_s']:,.1f}",
        _("seconds in all"): f"{summary['seconds']:,.1f}",
        _("steps"): f"{summary['steps']:,}",
        _("time to first token, mean (s)"): f"{summary['mean_ttft_s']:,.3f}",
        _("time to first token, half within (s)"): f"{summary['p50_ttft_s']:,.3f}",
        _("time to first token, 95 % within (s)"): f"{summary['p95_ttft_s']:,.3f}",
        _("time per later token, mean (ms)"): _("none")
        if summary["mean_tpot_s"] is None
        else f"{1e3 * summary['mean_tpot_s']:,.1f}",
        _("requests at the same time, mean"): f"{summary['mean_running']:,.1f}",
        _("... while somebody waited"): f"{summary['mean_running_when_full']:,.1f}",
        _("... at most"): f"{summary['peak_running']:,}",
        _("tokens that each held then, mean"): f"{summary['mean_tokens_when_full']:,.0f}",
        _("preemptions"): f"{summary['preemptions']:,}",
    }
    for name, value in lines.items():
        table.add_row(name, value)
    return table
