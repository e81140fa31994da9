"""The process behind `Worker`: reads calls from stdin, writes answers to the stdout that it was given.

What kernels print goes to stderr, so that it cannot get between the answers.
"""

import io
import os
import pickle
import struct
import sys
import traceback
from typing import IO, Any

import torch


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    while (message := receive(sys.stdin.buffer)) is not None:
        call = torch.load(io.BytesIO(message), weights_only=False)
        try:
            answer: Any = ("done", call["function"](*call["args"], **call["kwargs"]), call["args"], call["kwargs"])
            content = pack(answer)
        except Exception as error:  # whatever it is, the caller is told
            content = pack(("failed", _sendable(error), traceback.format_exc(), None))
        send(answers, content)


def pack(value: Any) -> bytes:
    """Tensors keep their strides, and those that share memory still do."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def send(stream: IO[bytes], content: bytes) -> None:
    stream.write(struct.pack("<Q", len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    content = stream.read(size)
    return content if len(content) == size else None


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception may hold anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
