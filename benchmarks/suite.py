"""What every suite has in common: its report, who measured it when and where, and the command line of a small one."""

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import psutil
import torch
import typer
from rich.console import Console

from benchmarks.bench import Bench
from benchmarks.contender.process import ROOT, ContenderFailed
from benchmarks.report import Case, Report, Result
from servelab.device import machine_name
from servelab.model.catalog import DEFAULT_MODEL, ModelUnavailable

FOLDER = ROOT / "benchmarks" / "results"
console = Console()


def command(suite: str, section: str, run: Callable[[Bench], Result]) -> Callable[..., None]:
    """The command line of a suite with one section, which goes into `results/<suite>.json`."""

    def main(
        quick: Annotated[bool, typer.Option(help="Small cases, one round; write nothing unless told where.")] = False,
        model: Annotated[str, typer.Option(help="A name or folder that load_model takes.")] = DEFAULT_MODEL,
        threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = torch.get_num_threads(),
        rounds: Annotated[int, typer.Option(min=1, help="How often each thing is measured.")] = 5,
        output: Annotated[Path | None, typer.Option(help="The JSON file to write, or to bring up to date.")] = None,
    ) -> None:
        path = output or (None if quick else FOLDER / f"{suite}.json")
        torch.set_num_threads(threads)
        report = open_report(path, suite)
        begin = time.perf_counter()
        bench = Bench(model, threads, 1 if quick else rounds, quick, lambda text: console.print(text, style="dim"))
        try:
            result = run(bench)
        except (ContenderFailed, ModelUnavailable) as reason:
            console.print(f"\n{reason}", style="red")
            raise typer.Exit(1) from reason
        result = dated(result, time.perf_counter() - begin, {"model": model})
        for target in result.targets:
            console.print(str(target), style="green" if target.is_met else "red")
        if path is not None:
            report.with_section(section, result).save(path)
            console.print(f"Written to {path}")

    return main


def open_report(path: Path | None, suite: str) -> Report:
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
