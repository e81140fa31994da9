"""An OpenAI-compatible server over the engine. Needs ``pip install servelab[serving]``."""

from servelab.serving.app import ServerConfig, create_app
from servelab.serving.server import ServerFailed, serve
from servelab.serving.worker import Busy, EngineWorker, Stopped, Stream

__all__ = ["Busy", "EngineWorker", "ServerConfig", "ServerFailed", "Stopped", "Stream", "create_app", "serve"]
