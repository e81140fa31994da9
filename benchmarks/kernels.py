"""Check and time every kernel on this GPU, and write what came out to `results/kernels.json`.

    python -m benchmarks.kernels              # everything, under 5 minutes of a GPU; `make gpu`
    python -m benchmarks.kernels --dry        # small, in Triton's interpreter or on whatever there is; writes nothing

It needs torch, triton and the standard library. The engine's part and the notebooks' GPU cells need the course's other
packages too; without them they are left out, and the file says so.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kernels.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and time every kernel on this GPU.")
    parser.add_argument("--dry", action="store_true", help="small cases in Triton's interpreter; nothing is written")
    parser.add_argument("--output", type=Path, default=None, help=f"the JSON file to write (default: {RESULTS.name})")
    parser.add_argument("--check-only", action="store_true", help="do not time")
    options = parser.parse_args()
    if options.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    sys.path.insert(0, str(ROOT / "src"))

    import torch

    from benchmarks.kernel import ceiling, cell, check, live, speed
    from benchmarks.report import Measurement, Report, Result
    from servelab.device import Clock
    from servelab.kernels.language import HAS_TRITON

    if not HAS_TRITON:
        print("expected Triton, and a GPU (or --dry for its interpreter), got neither: nothing to do")
        return 2
    if not options.dry and not torch.cuda.is_available():
        print("expected a GPU that torch can use, got none; --dry tries the script without one")
        return 2
    device = torch.device("cpu" if options.dry else "cuda")
    dtype = torch.float16
    if device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
        dtype = torch.bfloat16
    bench = check.Bench(device, small=options.dry, dtype=dtype)
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 references are to be float32
    began = time.perf_counter()
    report = Report("kernels", machine(device))

    outcomes = check.check_all(bench, lambda text: print(f"  checking {text}", flush=True))
    for outcome in outcomes:
        if not outcome.is_right:
            reason = outcome.message or f"{outcome.error:.2f} times the error that is allowed"
            print(f"WRONG  {outcome.operator}, {outcome.case}: {reason}")
    checks = tuple(
        Measurement(
            "error over what is allowed",
            "x",
            (min(outcome.error, 1e9),),
            {"operator": outcome.operator, "case": outcome.case},
        )
        for outcome in outcomes
    )
    report = report.with_section("checks", stamped(Result(checks, settings={"dtype": str(dtype)}), began))
    wrong = {outcome.operator for outcome in outcomes if not outcome.is_right}

    if not options.check_only:
        started = time.perf_counter()
        timer = Clock(device)
        bandwidth, flops = ceiling.copy_bandwidth(timer), ceiling.matmul_flops(timer, dtype)
        timed = speed.Speed(bench, timer, bandwidth, flops)
        timed.keep("copy", "bytes/s", bandwidth, {})
        timed.keep("matrix product", "FLOP/s", flops, {"dtype": str(dtype)})
        for operator, title, section in speed.sections():
            if operator in wrong:
                print(f"  NOT timed: {title}, because {operator} is wrong")
                continue
            print(f"  timing {title}", flush=True)
            try:
                section(timed)
            except Exception as error:  # one that cannot run must not take the others' results along
                wrong.add(operator)
                print(f"FAILED {title}: {type(error).__name__}: {error}")
        report = report.with_section("speed", stamped(Result(tuple(timed.measurements), tuple(timed.targets)), started))
        for target in timed.targets:
            print(f"  {target}")

    for name, part in (("engine", live.run), ("cells", cell.run)):
        started = time.perf_counter()
        print(f"  running {name}", flush=True)
        try:
            result = part(bench)
        except ImportError as error:
            print(f"  left out: {name}, which needs the course's packages ({error})")
            continue
        except Exception as error:
            wrong.add(name)
            print(f"FAILED {name}: {type(error).__name__}: {error}")
            continue
        report = report.with_section(name, stamped(result, started))

    output = options.output or (None if options.dry else RESULTS)
    if output is not None:
        report.save(output)
        print(f"  written: {output}")
    print(f"{len(outcomes)} checks, {len(wrong)} wrong, {time.perf_counter() - began:.0f} s")
    return 1 if wrong else 0


def machine(device: "torch.device") -> dict[str, str | int | float]:  # noqa: F821 (imported late)
    import torch
    import triton

    named: dict[str, str | int | float] = {"python": platform.python_version(), "torch": torch.__version__}
    named["triton"] = triton.__version__
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        named["device"] = properties.name
        named["compute capability"] = f"{properties.major}.{properties.minor}"
        named["memory GiB"] = round(properties.total_memory / 2**30, 1)
        named["processors"] = properties.multi_processor_count
        named["CUDA"] = str(torch.version.cuda)
    else:
        named["device"] = "Triton's interpreter"
    return named


def stamped(result: "Result", started: float) -> "Result":  # noqa: F821 (imported late)
    import dataclasses

    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return dataclasses.replace(
        result,
        commit=head.stdout.strip(),
        date=datetime.date.today().isoformat(),
        seconds=time.perf_counter() - started,
    )


if __name__ == "__main__":
    sys.exit(main())
