"""What `servelab load` prints: a table of levels, and what stands below it; and the page with the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from servelab.translation import _

if TYPE_CHECKING:
    from rich.table import Table

    from servelab.trace import LoadPoint, LoadReport, Quantiles


class NothingMeasured(RuntimeError):
    """No request came to its end: what the server said, in one sentence."""


def show(report: LoadReport) -> None:
    """Print a report."""
    import rich

    rich.print(table(report))
    for line in notes(report):
        typer.echo(line)


def table(report: LoadReport) -> Table:
    """Three lines a level: the median, p95 and p99 of each latency, in milliseconds."""
    from rich import box
    from rich.table import Table

    rated = any(point.streams is None for point in report.points)
    heads = [_("load"), *([_("in flight")] if rated else []), _("done"), _("failed"), _("tokens/s"), "", "TTFT", "ITL"]
    heads += ["TPOT", _("latency"), *([_("good"), _("good/s")] if report.service_level.asks else [])]
    caption = _("TTFT, ITL, TPOT and latency in ms")
    laid_out = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 1, 0), caption=caption)
    for head in heads:
        laid_out.add_column(head, justify="right", no_wrap=True)
    for point in report.points:
        laid_out.add_row(*cells(point, rated, report.service_level.asks))
    return laid_out


def cells(point: LoadPoint, rated: bool, with_goodput: bool) -> list[str]:
    words = [point.label, *([f"{point.concurrency:.1f}"] if rated else []), f"{point.completed}", f"{point.failed}"]
    words += [f"{point.output_tokens_per_s:,.1f}", "p50\np95\np99"]
    words += [spread(value) for value in (point.ttft_ms, point.itl_ms, point.tpot_ms, point.latency_ms)]
    if with_goodput:
        share, rate = point.goodput_share, point.goodput_per_s
        words += ["-" if share is None else f"{share:.0%}", "-" if rate is None else f"{rate:.2f}"]
    return words


def spread(value: Quantiles | None) -> str:
    return "-" if value is None else "\n".join(f"{number:,.0f}" for number in (value.p50, value.p95, value.p99))


def notes(report: LoadReport) -> list[str]:
    """What stands below the table, a sentence a line."""
    done = max(1, sum(point.completed for point in report.points))
    prompt = sum(point.completed * point.prompt_tokens for point in report.points) / done
    output = sum(point.completed * point.output_tokens for point in report.points) / done
    lines = [
        _("{model} at {url}, {tool}, seed {seed}: prompts of {prompt}, answers of {output}.").format(
            model=report.model,
            url=report.url,
            tool=report.tool,
            seed=report.seed,
            prompt=report.prompt,
            output=report.output,
        ),
        _("Sent were {prompt:.0f} prompt tokens and written {output:.0f} output tokens a request, in the mean.").format(
            prompt=prompt, output=output
        ),
    ]
    if report.profile == "goodput" and report.best_streams is None:
        lines.append(_("No number of streams that was tried kept the service level."))
    if report.best_streams is not None:
        lines.append(_("{streams} streams are the most within the service level.").format(streams=report.best_streams))
    if report.samples:
        usage = max(sample.kv_usage for sample in report.samples)
        waiting = max(sample.waiting for sample in report.samples)
        lines.append(
            _("KV cache in use: at most {usage:.1%}; requests that waited: at most {waiting}.").format(
                usage=usage, waiting=waiting
            )
        )
    else:
        lines.append(_("The server has no /metrics that vLLM's names are in, so its memory is not shown."))
    for error in dict.fromkeys(error for point in report.points for error in point.errors):
        lines.append(_("Failed: {error}").format(error=error))
    return lines


def check(report: LoadReport) -> None:
    """Raises NothingMeasured where no request came to its end."""
    if not any(point.completed for point in report.points):
        errors = [error for point in report.points for error in point.errors]
        reason = errors[0] if errors else _("all were cut off: give it more seconds")
        raise NothingMeasured(_("No request came to its end: {reason}").format(reason=reason))


def write_page(report: LoadReport, path: Path) -> None:
    """Both pictures as one page that needs no network."""
    from html import escape

    from servelab.figures import load_curves, load_memory

    figures = [load_curves(report)] + ([load_memory(report)] if report.samples else [])
    parts = ["<!doctype html><meta charset='utf-8'><title>servelab load</title>"]
    parts.append("<style>body{font:15px sans-serif}</style>")
    for number, figure in enumerate(figures):
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0))
        parts.append(f"<p>{escape(figure.layout.meta['sentence'])}</p>")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
