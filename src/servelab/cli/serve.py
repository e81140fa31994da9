"""`servelab serve`: a model behind an OpenAI-compatible API on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from servelab.translation import _

if TYPE_CHECKING:
    from servelab.speculative import Speculation

DRAFTERS = ("ngram", "head")


def run(
    model_name: str,
    host: str,
    port: int,
    api_key: str | None,
    served_model_name: str | None,
    max_waiting: int,
    speculative: str | None,
    k: int,
    **engine_options: object,
) -> None:
    """Load, serve, and say where. Raises ValueError for options that cannot be, ServerFailed, ModelUnavailable."""
    try:
        from servelab.serving import ServerConfig, serve
    except ModuleNotFoundError as missing:
        raise ValueError(
            _("expected the packages of the server, got no {name}: pip install 'servelab[serving]'").format(
                name=missing.name
            )
        ) from None
    from servelab.engine import EngineConfig
    from servelab.model import load_model

    if api_key == "":
        raise ValueError(_("expected --api-key with a key, got an empty one"))
    engine_config = EngineConfig(**engine_options, speculative=drafter(speculative, k))  # type: ignore[arg-type]
    config = ServerConfig(
        model_name=served_model_name or Path(model_name).name,
        root=str(Path(model_name).resolve()) if Path(model_name).is_dir() else model_name,
        api_key=api_key,
        max_waiting=max_waiting,
    )

    def started(url: str) -> None:
        typer.echo(_("{model} is served at {url}/v1").format(model=config.model_name, url=url))

    serve(load_model(model_name), engine_config, config, host=host, port=port, started=started)


def drafter(name: str | None, k: int) -> Speculation | None:
    """Raises ValueError for a name that is not one."""
    from servelab.speculative import DraftHead, NGram

    if name is None:
        return None
    if name not in DRAFTERS:
        raise ValueError(_("expected --speculative as one of {names}, got {name!r}").format(names=DRAFTERS, name=name))
    return NGram(k=k, adaptive=True) if name == "ngram" else DraftHead(k=k, adaptive=True)
