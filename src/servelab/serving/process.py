"""A child process that may have children of its own: its last words, and an end that leaves none of them behind."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable

PATIENCE_S = 10.0  # for a process to end by itself, before it is killed


def stop_group(process: "subprocess.Popen[str]", patience_s: float = PATIENCE_S) -> int:
    """End the process and all that it started, which it must lead as a group (`start_new_session`).

    Returns its exit code. It is asked first (SIGTERM), so that it can end its children in order; after its end, or
    `patience_s` seconds, whoever is left is killed.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def last_words(lines: Iterable[str], count: int = 1, nothing: str = "it said nothing") -> str:
    """The last `count` lines that are not blank."""
    said = [line.strip() for line in lines if line.strip()]
    return "\n".join(said[-count:]) or nothing
