"""Measure the engine, section by section, and write what came out to `results/engine.json`.

    python -m benchmarks.engine                     # everything, about 40 minutes; `make bench`
    python -m benchmarks.engine step memory         # these sections; the others stay in the file as they are
    python -m benchmarks.engine --quick             # small cases, nothing is written: does it all run?

Let nothing else run meanwhile. `python -m benchmarks.readme` then renews the table and the picture of the README.
"""

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import psutil
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.bench import Bench
from benchmarks.contender.process import ROOT, ContenderFailed
from benchmarks.report import Case, Report, Result
from benchmarks.section import batching, capacity, compare, memory, overhead, prefix, speculation, step
from servelab.device import machine_name, measured_bandwidth, measured_matmul_flops
from servelab.model.catalog import DEFAULT_MODEL, ModelUnavailable

RESULTS = ROOT / "benchmarks" / "results" / "engine.json"
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
console = Console()


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
    report = open_report(path)
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


def open_report(path: Path | None, suite: str = "engine") -> Report:
    """The report to add to: what is in the file, if it is of this machine; else a new one."""
    machine = describe_machine()
    if path is not None and path.exists():
        report = Report.load(path)
        if dict(report.machine) == machine:
            return report
        console.print(f"{path} is of another machine ({report.machine['name']}): it is begun anew")
    return Report(suite, machine)


def describe_machine() -> dict[str, str | int | float]:
    return {
        "name": machine_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
    }


def dated(result: Result, seconds: float, settings: Case) -> Result:
    """The result with what only the conductor knows."""
    own = {name: version(name) for name in ("servelab", "torch", "numba", "numpy")}
    return Result(
        measurements=result.measurements,
        targets=result.targets,
        settings={**settings, **result.settings},
        versions={"python": platform.python_version(), **own, **result.versions},
        commit=commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        seconds=seconds,
    )


def commit() -> str:
    """The commit that is measured, with "+" behind it when files differ from it; "unknown" outside of a clone."""
    try:
        head = git("rev-parse", "--short=10", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--", "src", "benchmarks/**/*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*arguments: str) -> str:
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
