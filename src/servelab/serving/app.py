"""The HTTP side: OpenAI's routes over an `EngineWorker`, with `/health` and `/metrics`."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from servelab import __version__
from servelab.engine import RequestOutput
from servelab.model import Model
from servelab.serving.answer import DONE, ChatWriter, CompletionWriter, Counter, Writer, event
from servelab.serving.fault import ApiError, from_validation, internal_error
from servelab.serving.metrics import ServerMetrics
from servelab.serving.protocol import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, Sampled
from servelab.serving.worker import Busy, EngineWorker, Stopped, Stream

logger = logging.getLogger(__name__)

SLOW_BODY_S = 30.0  # a request must have come whole by then
REFERENCE = "#/components/schemas/{model}"
LONG_TEXT = 20_000  # characters that are tokenized beside the event loop, not in it

Body = TypeVar("Body", bound=Sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """model_name: what clients call the model. root: what it was loaded from, where a client on this machine finds its
    tokenizer; None is the name. api_key: what clients must know, None for nothing.

    max_body_bytes: of a request. max_waiting: requests that may wait for a seat before others get a 429.
    """

    model_name: str
    root: str | None = None
    api_key: str | None = None
    max_body_bytes: int = 4 << 20
    max_waiting: int = 256


def create_app(worker: EngineWorker, model: Model, config: ServerConfig, metrics: ServerMetrics) -> FastAPI:
    """The application. Its lifespan starts and stops `worker`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await worker.stop()

    app = FastAPI(title="servelab", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    server = Server(worker, model, config)

    app.add_exception_handler(ApiError, lambda request, error: error.response())
    app.add_exception_handler(HTTPException, unknown_route)  # type: ignore[arg-type]
    app.router.route_class = ToldRoute

    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """200 while the engine takes requests."""
        return Response(status_code=200 if worker.is_alive else 503)

    @app.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        """Counters, gauges and histograms in Prometheus' form."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models", response_class=JSONResponse)
    async def models(request: Request) -> Response:
        """The one model."""
        server.check_key(request)
        return JSONResponse({"object": "list", "data": [server.card()]})

    @app.get("/v1/models/{name:path}", response_class=JSONResponse)
    async def one_model(request: Request, name: str) -> Response:
        server.check_key(request)
        server.check_model(name)
        return JSONResponse(server.card())

    @app.post("/v1/completions", response_class=JSONResponse, openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Go on from a prompt."""
        body = await server.read(request, CompletionRequest)
        prompts = await server.token_ids(refusing("prompt", body.prompts), body.n)
        stream = await server.submit(prompts, body, 16 if body.max_tokens is None else body.max_tokens, body.logprobs)
        writer = CompletionWriter(config.model_name, model.tokenizer)
        return await server.answer(request, body, stream, writer, sum(map(len, prompts)))

    @app.post("/v1/chat/completions", response_class=JSONResponse, openapi_extra=body_of(ChatCompletionRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer the last message of a chat."""
        body = await server.read(request, ChatCompletionRequest)
        messages = [message.plain() for message in body.messages]
        text = refusing("messages", lambda: model.tokenizer.chat(messages))
        [prompt] = await server.token_ids([text], body.n)
        limit = body.max_completion_tokens or body.max_tokens
        room = max(1, server.longest - len(prompt))
        stream = await server.submit([prompt], body, room if limit is None else limit, body.num_logprobs)
        return await server.answer(request, body, stream, ChatWriter(config.model_name, model.tokenizer), len(prompt))

    def openapi() -> dict[str, Any]:
        """With the forms that the bodies refer to."""
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for form in (CompletionRequest, ChatCompletionRequest):
                components |= form.model_json_schema(ref_template=REFERENCE)["$defs"]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


class ToldRoute(APIRoute):
    """A route whose own faults are a 500 in OpenAI's form, on a connection that stays."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_and_tell(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, HTTPException):
                raise
            except Exception:
                logger.exception("a request failed")
                return internal_error().response()

        return handle_and_tell


class Server:
    """What the routes have in common."""

    def __init__(self, worker: EngineWorker, model: Model, config: ServerConfig) -> None:
        self.worker, self.model, self.config = worker, model, config

    def card(self) -> dict[str, Any]:
        name = self.config.model_name
        card = {"id": name, "object": "model", "created": 0, "owned_by": "servelab", "root": self.config.root or name}
        return card | {"max_model_len": self.longest}

    @property
    def longest(self) -> int:
        """Tokens of a request at most, prompt and output: what the context and the pool have room for."""
        engine = self.worker.engine
        return min(engine.max_model_len, engine.cache.num_slots)

    def check_key(self, request: Request) -> None:
        """Raises ApiError unless the request brings the key, where there is one."""
        if self.config.api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # A header comes as latin-1, whatever the client wrote: back to its bytes.
        given, own = key.strip().encode("latin-1"), self.config.api_key.encode()
        if scheme.lower() != "bearer" or not secrets.compare_digest(given, own):
            message = "expected the header Authorization: Bearer KEY with this server's key"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def check_model(self, name: str) -> None:
        if name != self.config.model_name:
            message = f"expected the model {self.config.model_name!r}, got {name!r:.100}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def read(self, request: Request, form: type[Body]) -> Body:
        """The body, checked. Raises ApiError for what is too large, too slow, no JSON, or of another form."""
        self.check_key(request)
        content, limit = bytearray(), self.config.max_body_bytes
        try:
            async with asyncio.timeout(SLOW_BODY_S):
                async for piece in request.stream():
                    content += piece
                    if len(content) > limit:
                        raise ApiError(413, f"expected a body of at most {limit:,} bytes, got more")
        except ClientDisconnect:
            raise ApiError(499, "the client went away") from None
        except TimeoutError:
            raise ApiError(408, f"expected the whole body within {SLOW_BODY_S:.0f} seconds") from None
        try:
            body = form.model_validate_json(bytes(content))
        except pydantic.ValidationError as error:
            raise from_validation(error.errors(include_url=False, include_input=False)) from None
        self.check_model(body.model)
        return body

    async def token_ids(self, prompts: Sequence[str | list[int]], n: int) -> list[list[int]]:
        """Raises ApiError for more choices, `n` a prompt, than one request may ask for."""
        if len(prompts) * n > MAX_CHOICES:
            raise ApiError(400, f"expected at most {MAX_CHOICES} choices, got {len(prompts)} prompts times n {n}")

        def encode() -> list[list[int]]:
            return [self.model.tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]

        if sum(len(one) for one in prompts if isinstance(one, str)) < LONG_TEXT:
            return encode()
        return await asyncio.to_thread(encode)

    async def submit(self, prompts: list[list[int]], body: Sampled, max_tokens: int, logprobs: int | None) -> Stream:
        params = refusing(None, lambda: body.params(max_tokens, logprobs))
        try:
            return await self.worker.submit(prompts, params)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        except Busy as error:
            raise ApiError(429, str(error), type="rate_limit_error", headers={"Retry-After": "1"}) from None
        except Stopped as error:
            raise ApiError(503, str(error), type="service_unavailable_error") from None

    async def answer(
        self, request: Request, body: Sampled, stream: Stream, writer: Writer, num_prompt_tokens: int
    ) -> Response:
        counter = Counter(num_prompt_tokens)
        if body.stream:
            chunks = stream_chunks(stream, writer, counter, body.stream_includes_usage)
            return EventStream(chunks, stream)
        outputs = await until_gone(request, collect(stream, counter))
        if outputs is None:
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(writer.whole(outputs, counter.usage()))


class EventStream(StreamingResponse):
    """Sends `chunks`, and lets go of `stream` however that ends."""

    def __init__(self, chunks: AsyncIterator[bytes], stream: Stream) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stream.close()


async def collect(stream: Stream, counter: Counter) -> list[RequestOutput]:
    """The last output of each answer. Raises ApiError where one ended otherwise."""
    last: dict[int, RequestOutput] = {}
    try:
        async for place, output in stream:
            counter.hear(place, output)
            last[place] = output
            check_reason(output)
    except Stopped as error:
        raise ApiError(503, str(error), type="service_unavailable_error") from None
    finally:
        stream.close()
    return [last[place] for place in sorted(last)]


async def stream_chunks(stream: Stream, writer: Writer, counter: Counter, with_usage: bool) -> AsyncIterator[bytes]:
    """Server-sent events, up to [DONE]."""
    begun: set[int] = set()
    none = {"usage": None} if with_usage else {}
    try:
        async for place, output in stream:
            counter.hear(place, output)
            check_reason(output)
            if place not in begun:
                begun.add(place)
                if (opening := writer.first(place)) is not None:
                    yield event(writer.chunk([opening], none))
            # A text that is held back, and nothing else, is no news.
            if output.delta_text or output.finish_reason is not None or output.logprobs is not None:
                yield event(writer.chunk([writer.delta(place, output)], none))
        if with_usage:
            yield event(writer.chunk([], {"usage": counter.usage()}))
    except ApiError as error:
        yield event(error.body())
    except Stopped as error:
        yield event(ApiError(503, str(error), type="service_unavailable_error").body())
    except Exception:  # the head is sent: only an event can still tell
        logger.exception("a stream failed")
        yield event(internal_error().body())
    yield DONE


def check_reason(output: RequestOutput) -> None:
    if output.finish_reason == "error":
        raise internal_error()
    if output.finish_reason == "abort":
        raise ApiError(503, "the server stops", type="service_unavailable_error")


Result = TypeVar("Result")


async def until_gone(request: Request, work: Awaitable[Result]) -> Result | None:
    """The result of `work`, or None, and `work` is cancelled, when the client goes away first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refusing(param: str | None, function: Callable[[], Result]) -> Result:
    """What `function` returns; its ValueError as a 400."""
    try:
        return function()
    except ValueError as error:
        raise ApiError(400, str(error), param=param) from None


def unknown_route(request: Request, error: HTTPException) -> JSONResponse:
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response()


def body_of(form: type[pydantic.BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that the route reads itself."""
    schema = {name: value for name, value in form.model_json_schema(ref_template=REFERENCE).items() if name != "$defs"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
