"""`servelab load`: send a load to an OpenAI-compatible server, and show what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from servelab.translation import _

Number = TypeVar("Number", int, float)

STREAMS = _("Requests in flight, in turn; a search for goodput begins with the first.")
RATES = _("Requests a second, in turn, for poisson and constant, such as 0.5,1,2.")
SECONDS = _("Seconds of a level, by default 20 unless requests are given.")
STDEV = _("Its spread: as large as the mean, it makes a long tail.")
METRICS = _("Whose /metrics to watch, for example each replica's, joined by commas; by default the server's.")


def load(
    url: str = typer.Argument(help=_("The server's address, such as http://127.0.0.1:8000.")),
    profile: str = typer.Option("concurrent", help=_("concurrent, poisson, constant, sweep or goodput.")),
    streams: str = typer.Option("1,2,4,8", help=STREAMS),
    rates: str = typer.Option("", help=RATES),
    levels: int = typer.Option(6, min=3, help=_("How many loads a sweep measures.")),
    requests: int | None = typer.Option(None, min=1, help=_("Requests of a level; what comes first ends it.")),
    seconds: float | None = typer.Option(None, min=1, help=SECONDS),
    max_streams: int | None = typer.Option(None, min=1, help=_("Most requests in flight, but for concurrent.")),
    prompt: int = typer.Option(64, min=1, help=_("Tokens of a prompt.")),
    prompt_stdev: int | None = typer.Option(None, min=1, help=STDEV),
    prompt_min: int | None = typer.Option(None, min=1, help=_("The shortest prompt.")),
    prompt_max: int | None = typer.Option(None, min=1, help=_("The longest prompt.")),
    output: int = typer.Option(32, min=1, help=_("Tokens of an answer.")),
    output_stdev: int | None = typer.Option(None, min=1, help=STDEV),
    output_min: int | None = typer.Option(None, min=1, help=_("The shortest answer.")),
    output_max: int | None = typer.Option(None, min=1, help=_("The longest answer.")),
    prefix: int = typer.Option(0, min=0, help=_("Tokens before each prompt that requests share.")),
    prefixes: int = typer.Option(1, min=1, help=_("How many such beginnings there are.")),
    seed: int = typer.Option(0, min=0, help=_("Of texts, lengths and arrivals.")),
    ttft_ms: float | None = typer.Option(None, help=_("Service level: most milliseconds to the first token.")),
    tpot_ms: float | None = typer.Option(None, help=_("Service level: most milliseconds between tokens, in the mean.")),
    latency_ms: float | None = typer.Option(None, help=_("Service level: most milliseconds to the last token.")),
    share: float = typer.Option(0.95, help=_("Share of requests that must keep it in a search for goodput.")),
    chat: bool = typer.Option(False, "--chat", help=_("Send chats instead of prompts.")),
    model: str | None = typer.Option(None, help=_("What the server calls the model, by default its only one.")),
    tokenizer: str | None = typer.Option(None, help=_("Folder or hub id, by default the model's own.")),
    api_key: str | None = typer.Option(None, envvar="SERVELAB_API_KEY", help=_("What the server wants to know.")),
    metrics_urls: str = typer.Option("", help=METRICS),
    as_json: bool = typer.Option(False, "--json", help=_("Print everything as JSON instead of a table.")),
    html: str | None = typer.Option(None, help=_("Write the pictures to this page.")),
) -> None:
    """Load, and print; what is in the way is said in one sentence, and the exit code is then 1."""
    try:
        from servelab.cli import load_report
        from servelab.cli.simulate import check_file
        from servelab.serving import Lengths, Load, run_load
        from servelab.trace import ServiceLevel

        sent = Load(
            profile=profile,
            streams=numbers(streams, int, "--streams"),
            rates=numbers(rates, float, "--rates"),
            num_levels=levels,
            requests=requests,
            seconds=seconds,
            max_streams=max_streams,
            prompt=Lengths(prompt, prompt_stdev, prompt_min, prompt_max),
            output=Lengths(output, output_stdev, output_min, output_max),
            shared_prefix_tokens=prefix,
            num_shared_prefixes=prefixes,
            seed=seed,
            service_level=ServiceLevel(ttft_ms, tpot_ms, latency_ms),
            target_share=share,
            chat=chat,
        )
        if html is not None:  # before the load, which takes minutes
            check_file(html)
        watched = [address for address in metrics_urls.split(",") if address]
        report = run_load(url, sent, model=model, tokenizer=tokenizer, api_key=api_key or None, metrics_urls=watched)
        if as_json:
            typer.echo(json.dumps(report.to_json(), ensure_ascii=False))
        else:
            load_report.show(report)
        load_report.check(report)
        if html is not None:
            load_report.write_page(report, Path(html))
            typer.echo(_("The pictures are in {file}").format(file=html), err=True)
    except Exception as reason:
        typer.echo(f"\n{reason}", err=True)
        raise typer.Exit(1) from reason
    except KeyboardInterrupt as stopped:
        typer.echo(_("\nStopped: what was measured so far is lost."), err=True)
        raise typer.Exit(130) from stopped


def numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    """Words such as "1,2,4" as numbers. Raises ValueError that names the option."""
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        sentence = _("expected {option} as numbers such as 1,2,4, got {text!r}")
        raise ValueError(sentence.format(option=option, text=text)) from None
