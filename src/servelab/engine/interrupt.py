"""`uninterrupted`: keep Ctrl-C, or a notebook's stop button, out of the few lines that must happen as a whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a KeyboardInterrupt back until the block is over, then raise it.

    For bookkeeping, not for a whole forward pass: a block taken from the pool and not yet in a table would be lost.
    Python delivers signals to the main thread only, so in another thread there is nothing to hold.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)
