"""The engine: requests in, tokens out, and a trace of every decision."""

from servelab.engine.allocation import allocation_trace

__all__ = ["allocation_trace"]
