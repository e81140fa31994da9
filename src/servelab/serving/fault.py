"""What a client is told when something is wrong, in OpenAI's form: ``{"error": {message, type, param, code}}``."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

STOP = "expected a string, or a list of at most 16 strings"
PROMPT = "expected a string, token ids, or a list of either"


class ApiError(Exception):
    """An answer that is not the one asked for. param: the field of the request that it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code, self.headers = param, code, headers

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=dict(self.headers or {}))


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first fault that pydantic found, in a sentence that names the field."""
    error = errors[0]
    place = [str(part) for part in error["loc"]]
    param = place[0] if place else None
    message = str(error["msg"]).removeprefix("Value error, ")
    if param == "prompt":  # a union: its faults, one for each of its kinds, would say less
        place, message = ["prompt"], PROMPT
    elif param == "stop":
        place, message = ["stop"], STOP
    elif param == "messages":
        place = [part for part in place if not part.startswith(("str", "list["))]
    where = ".".join(place)
    return ApiError(400, f"{where}: {message}" if where else message, param=param)


INTERNAL = "the engine failed at this request"


def internal_error() -> ApiError:
    return ApiError(500, INTERNAL, type="internal_server_error")
