"""Hold the simulator against the engine on this machine, and write what came out to `results/simulate.json`.

    python -m benchmarks.simulate             # about 5 minutes
    python -m benchmarks.simulate --quick     # small loads and one round, nothing is written: does it all run?

Let nothing else run meanwhile. See `benchmarks.section.simulate` for what is compared and how.
"""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.bench import Bench
from benchmarks.contender.process import ROOT
from benchmarks.engine import dated, open_report
from benchmarks.section import simulate
from servelab.model.catalog import DEFAULT_MODEL, ModelUnavailable

RESULTS = ROOT / "benchmarks" / "results" / "simulate.json"
console = Console()


def main(
    quick: Annotated[bool, typer.Option(help="Small loads and one round; write nothing unless told where.")] = False,
    model: Annotated[str, typer.Option(help="A name or folder that load_model takes.")] = DEFAULT_MODEL,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = torch.get_num_threads(),
    rounds: Annotated[int, typer.Option(min=1, help="How often each load is served.")] = 5,
    output: Annotated[Path | None, typer.Option(help="The JSON file to write.")] = None,
) -> None:
    """Fit one efficiency factor on one load, hold it, and compare on the others."""
    path = output or (None if quick else RESULTS)
    torch.set_num_threads(threads)
    report = open_report(path, "simulate")
    begin = time.perf_counter()
    bench = Bench(model, threads, 1 if quick else rounds, quick, lambda text: console.print(text, style="dim"))
    try:
        result = simulate.run(bench)
    except ModelUnavailable as reason:
        console.print(f"\n{reason}", style="red")
        raise typer.Exit(1) from reason
    result = dated(result, time.perf_counter() - begin, {"model": model})
    for target in result.targets:
        console.print(str(target), style="green" if target.is_met else "red")
    if path is not None:
        report.with_section("loads", result).save(path)
        console.print(f"Written to {path}")


if __name__ == "__main__":
    typer.run(main)
