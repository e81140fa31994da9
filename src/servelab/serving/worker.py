"""`EngineWorker`: the engine in a thread of its own, and streams of its outputs for an asyncio program.

The thread alone touches the engine. Others send it commands, which it takes between two steps; after each step it hands
all outputs over in one call, and the event loop deals them out to whoever waits.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from servelab.engine import Engine, RequestOutput
from servelab.sampling import SamplingParams

logger = logging.getLogger(__name__)

FAULTS_IN_A_ROW = 5  # steps that may fail, with no token in between, before the engine is given up


class Busy(Exception):
    """No more requests are taken now."""


class Stopped(Exception):
    """The engine takes no requests any more."""


class Stream:
    """The outputs of one call, as they come: ``async for place, output in stream``; it ends with the last answer.

    place: which answer this is: of prompt i, answer j of n has i * n + j. Whoever reads no further calls `close`.
    What is not read yet is kept as one output an answer, so that a client who does not read costs no more than one who
    does. Raises Stopped where the engine ends first.
    """

    def __init__(self, worker: "EngineWorker", request_ids: list[str], n: int) -> None:
        self.request_ids, self._worker, self._n, self._to_come = request_ids, worker, n, n * len(request_ids)
        self._unread: dict[int, RequestOutput] = {}
        self._fault: Stopped | None = None
        self._news = asyncio.Event()

    def put(self, output: RequestOutput) -> bool:
        """Returns whether it was the last."""
        place = self.request_ids.index(output.request_id) * self._n + output.index
        self._to_come -= output.finish_reason is not None
        before = self._unread.get(place)
        self._unread[place] = output if before is None else joined(before, output)
        self._news.set()
        return self._to_come == 0

    def fail(self, reason: Stopped) -> None:
        self._to_come, self._fault = 0, reason
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        while self._to_come or self._unread:
            await self._news.wait()
            while self._unread:
                place = next(iter(self._unread))
                yield place, self._unread.pop(place)
            self._news.clear()
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Let the engine forget what is not over; what it held is free after the next step."""
        self._worker.forget(self)


def joined(before: RequestOutput, after: RequestOutput) -> RequestOutput:
    """Two outputs of one answer in a row, as one."""
    return dataclasses.replace(
        after,
        delta_token_ids=before.delta_token_ids + after.delta_token_ids,
        delta_text=before.delta_text + after.delta_text,
    )


class EngineWorker:
    """Runs `engine` in a thread. max_waiting: requests beyond `max_num_seqs` that may wait before others are sent away.

    heard: called in the thread with the outputs of each step, for those who count.
    """

    def __init__(
        self,
        engine: Engine,
        max_waiting: int = 256,
        heard: Callable[[list[RequestOutput]], object] = lambda outputs: None,
    ) -> None:
        if max_waiting < 0:
            raise ValueError(f"expected max_waiting of at least 0, got {max_waiting}")
        self.engine, self.heard = engine, heard
        self.max_requests = engine.config.max_num_seqs + max_waiting
        self.fault: BaseException | None = None  # that ended the thread
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}  # this and the next are touched by the event loop alone
        self._asked: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_stopping = False

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_stopping

    @property
    def num_requests(self) -> int:
        """Those that are not over."""
        return len(self._streams)

    def start(self) -> None:
        """Begin; call it in the event loop that will read the streams."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, prompts: Sequence[list[int]], params: SamplingParams) -> Stream:
        """Put requests at the end of the queue: all, or none.

        Raises ValueError for what the engine refuses, Busy when too many wait, Stopped when the engine is gone.
        """
        if not self.is_alive:
            raise Stopped("the engine has stopped")
        if len(prompts) > self.max_requests:
            raise ValueError(f"expected at most {self.max_requests} prompts at a time, got {len(prompts)}")
        if len(self._streams) + len(prompts) > self.max_requests:
            raise Busy(f"{len(self._streams)} requests run or wait, at most {self.max_requests} do: try again later")
        assert self._loop is not None
        stream = Stream(self, [f"request-{next(self._numbers)}" for _ in prompts], params.n)
        accepted: asyncio.Future[None] = self._loop.create_future()
        self._streams.update(dict.fromkeys(stream.request_ids, stream))
        self._asked.add(accepted)

        def add() -> None:
            try:
                for request_id, prompt in zip(stream.request_ids, prompts, strict=True):
                    self.engine.add_request(prompt, params, request_id)
            except Exception as error:
                self._call_soon(partial(answer, accepted, error))
            else:
                self._call_soon(partial(answer, accepted))

        self._commands.put(add)
        try:
            await accepted
        except BaseException:  # refused, or the client is gone
            self.forget(stream)
            raise
        finally:
            self._asked.discard(accepted)
        return stream

    def forget(self, stream: Stream) -> None:
        """Deliver nothing more to `stream`, and abort its requests."""
        for request_id in stream.request_ids:
            if self._streams.pop(request_id, None) is not None:
                self._commands.put(partial(self.engine.abort, request_id))

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Abort what runs, tell everyone, and end the thread. Once it stops, another call has no effect."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for name in self._streams:
            self._commands.put(partial(self.engine.abort, name))
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as fault:  # whoever waits must be told, whatever it was
            self.fault = fault
            logger.critical("the engine has stopped: %s: %s", type(fault).__name__, fault)
        finally:
            self._call_soon(self._give_up)

    def _serve(self) -> None:
        engine, faults = self.engine, 0
        while True:
            # With nothing to compute the thread sleeps until somebody calls.
            while not (engine.has_unfinished() and self._commands.empty()):
                command = self._commands.get()
                if command is None:
                    self._deliver(engine.step() if engine.has_unfinished() else [])
                    return
                command()
            try:
                outputs = engine.step()
            except Exception as error:
                faults += 1
                logger.exception("a step failed; its requests end with an error")
                if faults == FAULTS_IN_A_ROW:
                    raise RuntimeError(f"{faults} steps failed in a row, the last with {error!r}") from error
                continue
            if any(output.delta_token_ids for output in outputs):
                faults = 0
            self._deliver(outputs)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        self.heard(outputs)
        if outputs:
            self._call_soon(lambda: self._deal(outputs))

    def _deal(self, outputs: list[RequestOutput]) -> None:
        """In the event loop."""
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and stream.put(output):
                for request_id in stream.request_ids:
                    self._streams.pop(request_id, None)

    def _give_up(self) -> None:
        """In the event loop: the thread is over, so nothing will come for those who still wait."""
        self._is_stopping = True
        reason = Stopped("the engine has stopped" if self.fault is None else f"the engine has stopped: {self.fault}")
        for accepted in self._asked:
            answer(accepted, reason)
        for stream in set(self._streams.values()):
            stream.fail(reason)
        self._streams.clear()

    def _call_soon(self, call: Callable[[], object]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(call)


def answer(accepted: "asyncio.Future[None]", refusal: Exception | None = None) -> None:
    """Settle a future, unless it is: whoever waited may be gone."""
    if accepted.done():
        return
    if refusal is None:
        accepted.set_result(None)
    else:
        accepted.set_exception(refusal)
