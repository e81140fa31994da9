"""The conductor's side of a contender: starts its process, gives it tasks, and says in one sentence why it failed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.contender import vllm
from benchmarks.contender.protocol import Setup, Task, Timing
from servelab.serving.vllm import environment

ROOT = Path(__file__).resolve().parents[2]
VLLM_ENVIRONMENT = ROOT / ".venv-vllm"
OURS = "servelab"
PATIENCE_S = 10  # for a contender to end by itself


class ContenderFailed(Exception):
    """One sentence: which contender, and the last that it said."""


class Process:
    """A contender in a process of its own. It starts when it is entered, and ends when it is left."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str], setup: Setup) -> None:
        self.name, self.command, self.setup = name, list(command), setup
        self.variables = {"OMP_NUM_THREADS": str(setup.threads), **variables}
        self.versions: dict[str, str] = {}

    def __enter__(self) -> "Process":
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={**os.environ, **self.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.versions = self._ask(asdict(self.setup))["versions"]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def run(self, task: Task) -> Timing:
        """What the contender measured. Raises ContenderFailed when it could not."""
        return Timing(**self._ask(asdict(task)))

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._stop()
            raise ContenderFailed(f"{self.name} ended with code {code}: {self._last_words()}")
        content: dict[str, Any] = json.loads(answer)
        if "error" in content:
            raise ContenderFailed(f"{self.name}: {content['error']}")
        return content

    def _stop(self) -> int:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            return self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "it said nothing"


def contenders(setup: Setup, names: Sequence[str]) -> list[Process]:
    """The processes of these names, not started yet. Raises ContenderFailed where vLLM's environment is not there."""
    here = [sys.executable, "-m"]
    commands = {
        OURS: [*here, "benchmarks.contender.servelab"],
        "transformers static": [*here, "benchmarks.contender.transformers", "static"],
        "transformers continuous": [*here, "benchmarks.contender.transformers", "continuous"],
        "vLLM": [str(VLLM_ENVIRONMENT / "bin" / "python"), "-m", "benchmarks.contender.vllm"],
    }
    if "vLLM" in names and not Path(commands["vLLM"][0]).exists():
        raise ContenderFailed("vLLM has no environment yet: run `make vllm`, or leave it out with --without vLLM.")
    variables = {"vLLM": environment(VLLM_ENVIRONMENT) | vllm.in_process(setup.threads)}
    return [Process(name, commands[name], variables.get(name, {}), setup) for name in names]
