"""`serve`: the engine, the application and uvicorn, from the first word to a clean end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import uvicorn

from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.serving.app import ServerConfig, create_app
from servelab.serving.metrics import ServerMetrics
from servelab.serving.worker import EngineWorker

GRACE_S = 10  # that running requests have to finish when the server is told to stop
TELL_S = 3  # in which those that did not are told so


class ServerFailed(Exception):
    """The server could not start, or could not go on."""


class UntilFault(uvicorn.Server):
    """Ends too when the engine does: better a server that is gone than one that never answers.

    listening: called once connections are taken. grace_s: that requests have to finish at the end; then the engine
    aborts them, and their clients are told, for which the config's `timeout_graceful_shutdown` leaves time.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        worker: EngineWorker,
        listening: Callable[[], object] = lambda: None,
        grace_s: float = GRACE_S,
    ) -> None:
        super().__init__(config)
        self.worker, self.listening, self.grace_s = worker, listening, grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async def abort() -> None:
            await asyncio.sleep(self.grace_s)
            await self.worker.stop()

        aborting = asyncio.create_task(abort())
        try:
            await super().shutdown(sockets)
        finally:
            aborting.cancel()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.worker.fault is not None


def serve(
    model: Model,
    engine_config: EngineConfig,
    config: ServerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    started: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests then have 10 seconds to finish, and are aborted after that.

    port: 0 for any that is free. started: told the address, once it listens.
    Raises ValueError for a configuration that cannot be, ServerFailed where the address is taken, or the engine failed.
    """
    engine = Engine(model, engine_config)
    metrics = ServerMetrics(engine, config.model_name)
    worker = EngineWorker(engine, config.max_waiting, metrics.hear)
    app = create_app(worker, model, config, metrics)
    with listen(host, port) as listener:
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S + TELL_S, lifespan="on"
        )
        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after the clean end
            UntilFault(settings, worker, lambda: started(url)).run(sockets=[listener])
    if worker.fault is not None:
        raise ServerFailed(f"the engine failed: {worker.fault}")


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound. Raises ServerFailed, with the reason, where that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ServerFailed(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    return listener
