"""GuideLLM, the vLLM project's load tool, as a child process in its own environment (`make guidellm`).

It is told everything in a scenario file that no other user can read, as it may hold a key; it leaves a JSON report.
https://github.com/vllm-project/guidellm
"""

import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelab.serving.environment import find_python
from servelab.serving.process import last_words, stop_group
from servelab.translation import _

FOLDER, TOOL, TARGET = ".venv-guidellm", "GuideLLM", "guidellm"
SCENARIO, REPORT = "scenario.json", "report.json"
LOG = re.compile(
    r"Benchmark (?P<level>\d+) \((?P<name>[^)]*)\): (?P<status>\w+) \| elapsed=(?P<elapsed_s>[\d.]+)s"
    r" \| successful=(?P<completed>\d+) errored=(?P<failed>\d+)"
)
POLL_S = 0.25
KEPT_LINES = 40


class LoadFailed(Exception):
    """The load could not be run, or left no report: one sentence."""


class Progress:
    """How far the load is, from the lines that GuideLLM logs, which come at least every ten seconds.

    requests, seconds: what ends a level, whichever comes first. num_levels: None where the profile decides.
    """

    def __init__(self, num_levels: int | None, requests: int | None, seconds: float | None) -> None:
        self.num_levels, self.requests, self.seconds = num_levels, requests, seconds
        self.level, self.done, self.name, self.ended = 0, 0, "", 0
        self._since_s: float | None = None

    def hear(self, line: str) -> None:
        if (found := LOG.search(line)) is None:
            return
        self.level, self.name = int(found["level"]), found["name"]
        self.ended = int(found["completed"]) + int(found["failed"])
        if found["status"] == "completed":
            self.done, self._since_s = self.level, None
        elif found["status"] == "started":
            self._since_s = time.monotonic()

    @property
    def fraction(self) -> float:
        """Of the current level, 0 to 1."""
        shares = [0.0]
        if self._since_s is not None:
            if self.requests is not None:
                shares.append(self.ended / self.requests)
            if self.seconds is not None:
                shares.append((time.monotonic() - self._since_s) / self.seconds)
        return min(1.0, max(shares))

    def describe(self) -> str:
        """The current level in words."""
        if not self.level:
            return _("GuideLLM starts")
        return _("{name}, {ended} requests").format(name=self.name, ended=self.ended)


def run_scenario(
    scenario: Mapping[str, Any], progress: Progress, *, shown: bool, python: Path | None = None, offline: bool = True
) -> Any:
    """Run it in a folder of its own, and return the report as plain JSON values.

    shown: draw a bar on stderr. python: of another environment than `.venv-guidellm`. offline: keep from the hub.
    Raises EnvironmentMissing, LoadFailed. Whatever interrupts it, GuideLLM and its workers end too.
    """
    python = python or find_python(FOLDER, TOOL, TARGET)
    with tempfile.TemporaryDirectory(prefix="servelab-load-") as name:
        folder = Path(name)
        (folder / SCENARIO).write_text(json.dumps(scenario), encoding="utf-8")
        command = [str(python), "-m", "guidellm", "run", "--config", SCENARIO, "--disable-console"]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables(folder, offline),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        listener = threading.Thread(target=listen, args=(process, lines, progress), daemon=True)
        listener.start()
        try:
            watch(process, progress, shown)
        finally:
            code = stop_group(process)
            listener.join(5)
        if code:
            raise LoadFailed(_("GuideLLM ended with code {code}: {reason}").format(code=code, reason=last_words(lines)))
        try:
            return json.loads((folder / REPORT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LoadFailed(_("GuideLLM left no report ({reason}).").format(reason=error)) from None


def variables(folder: Path, offline: bool) -> dict[str, str]:
    """What the process is started with: no setting of the shell changes a load, nothing is sent home or kept.

    One worker up to eight cores: GuideLLM's own ten would take from a server on the same machine what they measure.
    """
    own = {
        "DO_NOT_TRACK": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "GUIDELLM__MAX_WORKER_PROCESSES": str(max(1, (os.cpu_count() or 1) // 8)),
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "200",
    }
    if offline:
        own["HF_HUB_OFFLINE"] = "1"
    return {name: value for name, value in os.environ.items() if not name.startswith("GUIDELLM__")} | own


def listen(process: "subprocess.Popen[str]", lines: deque[str], progress: Progress) -> None:
    """Read what it says until it ends."""
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            progress.hear(line)
            lines.append(line)


def watch(process: "subprocess.Popen[str]", progress: Progress, shown: bool) -> None:
    """Draw the bar until the process ends."""
    from tqdm import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}" if progress.num_levels else "{desc}: {elapsed}"
    with tqdm(total=progress.num_levels, bar_format=form, disable=not shown) as bar:
        while process.poll() is None:
            bar.set_description_str(progress.describe(), refresh=False)
            bar.n = progress.done + progress.fraction
            bar.refresh()
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
