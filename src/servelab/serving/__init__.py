"""Serving: the course's OpenAI-compatible server, loads on any such server, and the start and end of a real vLLM.

A name is loaded when it is first used: a load needs no engine, the server needs ``pip install servelab[serving]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servelab.serving.app import ServerConfig, create_app
    from servelab.serving.environment import EnvironmentMissing
    from servelab.serving.guidellm import LoadFailed
    from servelab.serving.load import Lengths, Load
    from servelab.serving.measure import run_load
    from servelab.serving.server import ServerFailed, serve
    from servelab.serving.target import Target, TargetFailed
    from servelab.serving.vllm import VLLMFailed, VLLMServer
    from servelab.serving.watch import Watcher
    from servelab.serving.worker import Busy, EngineWorker, Stopped, Stream

__all__ = [
    "Busy",
    "EngineWorker",
    "EnvironmentMissing",
    "Lengths",
    "Load",
    "LoadFailed",
    "ServerConfig",
    "ServerFailed",
    "Stopped",
    "Stream",
    "Target",
    "TargetFailed",
    "VLLMFailed",
    "VLLMServer",
    "Watcher",
    "create_app",
    "run_load",
    "serve",
]

FILES = {
    "app": ("ServerConfig", "create_app"),
    "environment": ("EnvironmentMissing",),
    "guidellm": ("LoadFailed",),
    "load": ("Lengths", "Load"),
    "measure": ("run_load",),
    "server": ("ServerFailed", "serve"),
    "target": ("Target", "TargetFailed"),
    "vllm": ("VLLMFailed", "VLLMServer"),
    "watch": ("Watcher",),
    "worker": ("Busy", "EngineWorker", "Stopped", "Stream"),
}
PLACES = {name: file for file, names in FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
