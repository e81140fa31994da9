"""A real server on a real socket, over the toy model, in a thread of this process."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("fastapi", reason="the server's packages: pip install 'servelab[serving]'")

from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.serving import EngineWorker, ServerConfig, create_app
from servelab.serving.metrics import ServerMetrics
from servelab.serving.server import UntilFault, listen

NAME = "toy"


@dataclass
class Running:
    """A server that runs. client: with its address; engine: to look into once nothing runs."""

    url: str
    client: httpx.Client
    engine: Engine
    worker: EngineWorker
    server: uvicorn.Server
    thread: threading.Thread

    def post(self, path: str = "/v1/completions", **body) -> httpx.Response:
        return self.client.post(path, json={"model": NAME, "max_tokens": 8, "temperature": 0, **body})

    def numbers(self) -> dict[str, float]:
        """What `/metrics` says, by name and, where there is one, the reason."""
        return {
            sample.name + sample.labels.get("finished_reason", ""): sample.value
            for family in text_string_to_metric_families(self.client.get("/metrics").text)
            for sample in family.samples
            if "le" not in sample.labels
        }

    def wait_until_idle(self, timeout_s: float = 5.0) -> None:
        """Nothing runs, nothing waits, every block is back."""
        deadline = time.monotonic() + timeout_s
        while self.engine.has_unfinished() or self.worker.num_requests or not self.worker._commands.empty():
            assert time.monotonic() < deadline, "a request is still there"
            time.sleep(0.01)
        counted = threading.Event()
        self.worker._commands.put(counted.set)  # taken after the step has been told and counted
        assert counted.wait(timeout_s)
        self.engine.cache.check_integrity()
        assert self.engine.cache.num_free == self.engine.cache.num_slots // self.engine.cache.block_size


@contextlib.contextmanager
def running(model: Model, engine_options=None, **options) -> Iterator[Running]:
    """Starts and stops it. engine_options: of `EngineConfig`; options: of `ServerConfig`."""
    sizes = {"block_size": 4, "num_blocks": 128, "max_num_seqs": 4, "record_trace": False}
    engine = Engine(model, EngineConfig(**(sizes | (engine_options or {}))))
    config = ServerConfig(model_name=NAME, **options)
    metrics = ServerMetrics(engine, NAME)
    worker = EngineWorker(engine, config.max_waiting, metrics.hear)
    app = create_app(worker, model, config, metrics)
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=4, lifespan="on")
        server = UntilFault(settings, worker, grace_s=1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            with httpx.Client(base_url=url, timeout=20) as client:
                yield Running(url, client, engine, worker, server, thread)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def serve(toy_model) -> Iterator[Callable[..., Running]]:
    with contextlib.ExitStack() as stack:
        yield lambda engine_options=None, **options: stack.enter_context(running(toy_model, engine_options, **options))


@pytest.fixture
def server(serve) -> Running:
    return serve()
