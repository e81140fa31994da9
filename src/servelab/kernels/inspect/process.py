"""A child process for kernels: Triton's interpreter and its compiler exclude each other in one process."""

import atexit
import functools
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from servelab.kernels.inspect.worker import pack, receive, send

ENVIRONMENTS = {
    "interpret": {"TRITON_INTERPRET": "1", "SERVELAB_TRITON": "always"},
    "compile": {"TRITON_INTERPRET": "0", "SERVELAB_TRITON": "always"},
}


class WorkerFailed(RuntimeError):
    """The child process ended, or could not be started."""


class Worker:
    """Calls functions in a process of its own, started at the first call. kind: "interpret" or "compile".

    What a function does to its tensors is done to the caller's. One that raises, raises here; if the process ends,
    `WorkerFailed` says so, and the next call starts a new one.
    """

    def __init__(self, kind: str) -> None:
        if kind not in ENVIRONMENTS:
            raise ValueError(f"expected kind in {tuple(ENVIRONMENTS)}, got {kind!r}")
        self.kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """function: one that can be imported. Arguments and result: whatever `torch.save` takes."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        message = pack({"function": function, "args": args, "kwargs": kwargs})
        try:
            send(process.stdin, message)
            content = receive(process.stdout)
        except BaseException as error:  # a call that was left in the middle cannot be gone on with
            self.close()
            if isinstance(error, BrokenPipeError):
                raise WorkerFailed(self._last_words()) from None
            raise
        if content is None:
            self.close()
            raise WorkerFailed(self._last_words())
        state, result, done_args, done_kwargs = torch.load(io.BytesIO(content), weights_only=False)
        if state == "failed":
            raise result from RuntimeError(done_args)
        for mine, theirs in zip(_tensors((args, kwargs)), _tensors((done_args, done_kwargs)), strict=True):
            mine.untyped_storage().copy_(theirs.untyped_storage())
        return result

    def close(self) -> None:
        """End the process; a later call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "servelab.kernels.inspect.worker"],
            env={**os.environ, **ENVIRONMENTS[self.kind], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self._process

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-1000:]
        return f"the process in which kernels are run ended: {said or 'it said nothing'}"


@functools.cache
def shared(kind: str) -> Worker:
    """The one of this kind that inspections in this process use: it takes seconds to start."""
    worker = Worker(kind)
    atexit.register(worker.close)
    return worker


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
