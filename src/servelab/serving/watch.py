"""`Watcher`: a server's memory and queue, read from `/metrics` at fixed times while something else loads it."""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from servelab.serving.target import KV_USAGE, RUNNING, WAITING, Target, TargetFailed, sums
from servelab.trace.load import MemorySample

INTERVAL_S = 0.5


class Watcher:
    """Reads the metrics of one server, or of several replicas together, in a thread of its own.

    interval_s: from one reading to the next. samples: grows while it runs, times in seconds since `begin_s`, which is
    Unix time. A reading that fails is left out. fault: why there is none, in one sentence.
    """

    def __init__(self, targets: Sequence[Target], interval_s: float = INTERVAL_S) -> None:
        if not interval_s > 0:
            raise ValueError(f"expected interval_s above 0, got {interval_s}")
        self.targets, self.interval_s = targets, interval_s
        self.samples: list[MemorySample] = []
        self.fault: str | None = None
        self.begin_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> "Watcher":
        self.begin_s = time.time()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while True:
            try:
                self.samples.append(self._sample())
            except (TargetFailed, ValueError) as error:
                self.fault = str(error)
            number += 1
            late_s = time.time() - self.begin_s
            while number * self.interval_s < late_s:  # a slow server skips readings, it does not queue them
                number += 1
            if self._stopping.wait(number * self.interval_s - late_s):
                return

    def _sample(self) -> MemorySample:
        """Requests of all replicas; of their caches the mean."""
        moment_s = time.time() - self.begin_s
        readings = [sums(target.metrics_text()) for target in self.targets]
        for reading, target in zip(readings, self.targets, strict=True):
            missing = [name for name in (KV_USAGE, RUNNING, WAITING) if name not in reading]
            if missing:
                raise ValueError(f"expected {missing[0]} in {target.url}/metrics, got {len(reading)} other names")
        return MemorySample(
            round(moment_s, 3),
            sum(reading[KV_USAGE] for reading in readings) / len(readings),
            round(sum(reading[RUNNING] for reading in readings)),
            round(sum(reading[WAITING] for reading in readings)),
        )
