"""The engine: requests in, tokens out, and a trace of every decision."""

from servelab.engine.allocation import allocation_trace
from servelab.engine.calibration import calibrate_kv_scales
from servelab.engine.config import EngineConfig
from servelab.engine.engine import Engine
from servelab.engine.output import RequestMetrics, RequestOutput

__all__ = ["Engine", "EngineConfig", "RequestMetrics", "RequestOutput", "allocation_trace", "calibrate_kv_scales"]
