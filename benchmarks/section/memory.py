"""Resident memory while the engine serves, beside what must be there: the weights as they are held, and the KV pool.

In a process of its own, so that nothing else is counted: the pool is as large as the requests need, and they fill it.
"""

import json
import os
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.contender.process import ROOT
from benchmarks.report import Measurement, Result, Target

BAR_MB = 400.0


def run(bench: Bench, requests: int = 16, context: int = 500, program: str = "benchmarks.footprint") -> Result:
    """program: the module that prints what it holds. Raises RuntimeError when it fails."""
    bench.tell(f"a process that serves {requests} requests of {context} tokens")
    arguments = [bench.model_name, bench.threads, requests, context]
    process = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(bench.threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"the process whose memory is measured failed: {process.stderr.strip()[-500:]}")
    found = {name: value / 1e6 for name, value in json.loads(process.stdout.splitlines()[-1]).items()}
    beside = found["peak while serving"] - found["weights"] - found["KV pool"]
    measurements = [Measurement(name, "MB", (value,)) for name, value in found.items()]
    measurements.append(Measurement("beside weights and KV pool", "MB", (beside,)))
    target = Target("memory beside weights and KV pool", beside, "<=", BAR_MB, "MB")
    return Result(tuple(measurements), (target,), {"requests": requests, "context": context, "threads": bench.threads})
