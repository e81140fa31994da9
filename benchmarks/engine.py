"""Measure the engine, section by section, and write what came out to `results/engine.json`.

    python -m benchmarks.engine                     # everything, about 40 minutes; `make bench`
    python -m benchmarks.engine step memory         # these sections; the others stay in the file as they are
    python -m benchmarks.engine --quick             # small cases, nothing is written: does it all run?

Let nothing else run meanwhile. `python -m benchmarks.readme` then renews the table and the picture of the README.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.bench import Bench
from benchmarks.contender.process import ContenderFailed
from benchmarks.report import Result
from benchmarks.section import batching, capacity, compare, memory, overhead, prefix, speculation, step
from benchmarks.suite import FOLDER, console, dated, open_report
from servelab.device import measured_bandwidth, measured_matmul_flops
from servelab.model.catalog import DEFAULT_MODEL, ModelUnavailable

RESULTS = FOLDER / "engine.json"
SECTIONS: dict[str, Callable[[Bench], Result]] = {
    "step": step.run,
    "overhead": overhead.run,
    "memory": memory.run,
    "capacity": capacity.run,
    "prefix": prefix.run,
    "batching": batching.run,
    "speculation": speculation.run,
    "compare": compare.run,
}


def main(
    sections: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(SECTIONS)}; all by default.")] = None,
    quick: Annotated[bool, typer.Option(help="Small cases and one round; write nothing unless told where.")] = False,
    model: Annotated[str, typer.Option(help="A name or folder that load_model takes.")] = DEFAULT_MODEL,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each engine.")] = torch.get_num_threads(),
    rounds: Annotated[int, typer.Option(min=1, help="How often each thing is measured.")] = 5,
    without: Annotated[list[str] | None, typer.Option(help="A contender to leave out, such as vLLM.")] = None,
    output: Annotated[Path | None, typer.Option(help="The JSON file to write, or to bring up to date.")] = None,
) -> None:
    """Measure the engine on this machine, beside transformers and vLLM."""
    names = list(sections or SECTIONS)
    for name in names:
        if name not in SECTIONS:
            raise typer.BadParameter(f"expected sections of {', '.join(SECTIONS)}, got {name!r}")
    path = output or (None if quick else RESULTS)
    torch.set_num_threads(threads)
    try:
        measure(names, path, Bench(model, threads, 1 if quick else rounds, quick), set(without or ()))
    except (ContenderFailed, ModelUnavailable) as reason:
        console.print(f"\n{reason}", style="red")
        raise typer.Exit(1) from reason


def measure(names: list[str], path: Path | None, bench: Bench, without: set[str]) -> None:
    """Run the sections; tell the targets of each, and keep its result as soon as it is there."""
    report = open_report(path, "engine")
    ceilings = {
        "read_gbps": measured_bandwidth("cpu") / 1e9,
        "matmul_gflops": measured_matmul_flops(device="cpu") / 1e9,
    }
    contenders = [name for name in compare.NAMES if name not in without]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            tell = partial(show, progress, task, name)
            run = partial(compare.run, names=contenders) if name == "compare" else SECTIONS[name]
            begin = time.perf_counter()
            result = run(Bench(bench.model_name, bench.threads, bench.rounds, bench.quick, tell))
            result = dated(result, time.perf_counter() - begin, {**ceilings, "model": bench.model_name})
            progress.advance(task)
            for target in result.targets:
                progress.console.print(f"[bold]{name}[/] {target}", style="green" if target.is_met else "red")
            report = report.with_section(name, result)
            if path is not None:
                report.save(path)
    if path is not None:
        console.print(f"Written to {path}")


def show(progress: Progress, task: object, section: str, text: str) -> None:
    progress.update(task, description=f"{section}: {text}")


if __name__ == "__main__":
    typer.run(main)
