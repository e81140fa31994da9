"""The KV calculator: weights, KV cache and room on one GPU, and the point of a decode step on its roofline."""

import math
from dataclasses import dataclass
from typing import TypeVar

import plotly.graph_objects as go

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    GPUSpec,
    ModelSpec,
    arithmetic_intensity,
    decode_step_bytes,
    decode_step_seconds,
    kv_cache_bytes_per_token,
    kv_weight_crossover_tokens,
    requests_that_fit,
    weight_bytes,
)
from servelab.figures.frame import Frame, frame_figure, line_path, text_width
from servelab.translation import _

MARGIN = 18
STACK_BELOW = 720
PLOT_HEIGHT = 250
TRAIL = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


Spec = TypeVar("Spec", ModelSpec, GPUSpec)


@dataclass(frozen=True, slots=True)
class Load:
    """One point of the calculator: so many requests of so many tokens each, on one model and one GPU."""

    model: ModelSpec
    gpu: GPUSpec
    batch_size: int
    context_tokens: int
    bytes_per_element: float = 2
    bytes_per_parameter: float = 2

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_cache_bytes_per_token(self.model, self.bytes_per_element)

    @property
    def kv_bytes(self) -> int:
        return self.batch_size * self.context_tokens * self.kv_bytes_per_token

    @property
    def weights(self) -> int:
        return weight_bytes(self.model, self.bytes_per_parameter)

    @property
    def crossover_tokens(self) -> int:
        return kv_weight_crossover_tokens(self.model, self.bytes_per_element, self.bytes_per_parameter)

    @property
    def capacity(self) -> int:
        """Requests of this context whose KV fits beside the weights; 0 where the weights alone do not."""
        pool = max(0, self.gpu.memory_bytes - self.weights)
        return requests_that_fit(pool, self.kv_bytes_per_token, self.context_tokens)

    @property
    def step_seconds(self) -> float:
        sizes = (self.bytes_per_parameter, self.bytes_per_element)
        return decode_step_seconds(self.model, self.gpu, self.batch_size, self.context_tokens, *sizes)

    @property
    def step_bytes(self) -> float:
        sizes = (self.bytes_per_parameter, self.bytes_per_element)
        return decode_step_bytes(self.model, self.batch_size, self.context_tokens, *sizes)

    def intensity(self, batch_size: int | None = None) -> float:
        """FLOPs per byte of the step, or of a step with another batch size."""
        sizes = (self.bytes_per_parameter, self.bytes_per_element)
        return arithmetic_intensity(self.model, batch_size or self.batch_size, self.context_tokens, *sizes)


def calculator_frame(
    model: str | ModelSpec,
    gpu: str | GPUSpec,
    batch_size: int = 1,
    context_tokens: int = 1024,
    *,
    bytes_per_element: float = 2,
    bytes_per_parameter: float = 2,
    width: int = 900,
) -> Frame:
    """Draw the memory of one GPU under a load, and where its decode step stands on the roofline.

    model, gpu: a name of ``MODEL_SPECS`` and ``GPU_SPECS``, or a specification of your own.
    Raises ValueError for an unknown name or a load below 1.
    """
    load = Load(
        _look_up(model, MODEL_SPECS, "model"),
        _look_up(gpu, GPU_SPECS, "GPU"),
        _at_least_one(batch_size, "batch_size"),
        _at_least_one(context_tokens, "context_tokens"),
        bytes_per_element,
        bytes_per_parameter,
    )
    frame = Frame("calculator", width)
    y = _draw_memory(frame, load, width)
    stacked = width < STACK_BELOW
    facts_w = width - 2 * MARGIN if stacked else 0.42 * width - MARGIN
    facts_bottom = _draw_facts(frame, load, MARGIN, y, facts_w)
    if stacked:
        bottom = _draw_roofline(frame, load, MARGIN, facts_bottom + 14, width - 2 * MARGIN)
    else:
        x = MARGIN + facts_w + 28
        bottom = max(facts_bottom, _draw_roofline(frame, load, x, y, width - MARGIN - x))
    frame.height = int(bottom + 10)
    frame.legend = [("weights", _("weights")), ("kv", _("KV cache")), ("free", _("free memory"))]
    if load.weights + load.kv_bytes > load.gpu.memory_bytes:
        frame.legend.append(("over", _("does not fit")))
    frame.caption = _caption(load)
    frame.sentence = _(
        "All requests share one read of the weights, but each brings its own KV cache: batching pays until KV "
        "outweighs the weights or no longer fits."
    )
    frame.alt = frame.caption
    frame.data = {
        "model": load.model.name,
        "gpu": load.gpu.name,
        "batch_size": batch_size,
        "context_tokens": context_tokens,
        "kv_bytes_per_token": load.kv_bytes_per_token,
        "kv_bytes": load.kv_bytes,
        "weight_bytes": load.weights,
        "crossover_tokens": load.crossover_tokens,
        "capacity": load.capacity,
        "intensity": load.intensity(),
        "ridge_point": load.gpu.roofline().ridge_point,
        "step_seconds": load.step_seconds,
    }
    return frame


def calculator_figure(
    model: str | ModelSpec,
    gpu: str | GPUSpec,
    batch_size: int = 1,
    context_tokens: int = 1024,
    *,
    bytes_per_element: float = 2,
    bytes_per_parameter: float = 2,
    width: int = 900,
) -> go.Figure:
    """The same picture as a Plotly figure."""
    frame = calculator_frame(
        model,
        gpu,
        batch_size,
        context_tokens,
        bytes_per_element=bytes_per_element,
        bytes_per_parameter=bytes_per_parameter,
        width=width,
    )
    return frame_figure(frame)


def format_bytes(num_bytes: float) -> str:
    """Bytes in decimal units, three digits: 23.0 kB, 269 MB, 1.34 TB."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if num_bytes < 999.5 or unit == "PB":
            break
        num_bytes /= 1000
    digits = 0 if unit == "B" or num_bytes >= 99.95 else 1 if num_bytes >= 9.995 else 2
    return f"{num_bytes:.{digits}f} {unit}"


def _draw_memory(frame: Frame, load: Load, width: int) -> float:
    memory, total = load.gpu.memory_bytes, load.weights + load.kv_bytes
    title = _("Memory of {gpu}: {memory}").format(gpu=load.gpu.name, memory=format_bytes(memory))
    frame.text(MARGIN, 18, title, size=15, bold=True)
    scale = (width - 2 * MARGIN) / max(memory, total)
    y, height = 36, 44
    frame.rect(MARGIN, y, memory * scale, height, "free")
    parts = [("weights", _("weights {size}"), load.weights), ("kv", _("KV {size}"), load.kv_bytes)]
    x = float(MARGIN)
    for style, label, size in parts:
        fits = min(size, max(0.0, memory - (x - MARGIN) / scale))
        text = label.format(size=format_bytes(size))
        for part, kind in ((fits, style), (size - fits, "over")):
            if part > 0:
                options = (text, format_bytes(size)) if part >= size / 2 else ()
                shown = next((option for option in options if 1.1 * text_width(option) + 8 <= part * scale), "")
                frame.rect(x + (0 if kind == style else fits * scale), y, part * scale, height, kind, shown, bold=True)
        x += size * scale
    if total < memory:
        room = _("free {size}").format(size=format_bytes(memory - total))
        if text_width(room) + 12 < (memory - total) * scale:
            frame.text(MARGIN + (total + memory) / 2 * scale, y + height / 2, room, "muted", align="center")
    _draw_crossover(frame, load, scale, y, height, width)
    return y + height + 52


def _draw_crossover(frame: Frame, load: Load, scale: float, y: float, height: float, width: int) -> None:
    """A mark where KV would weigh as much as the weights."""
    x = MARGIN + 2 * load.weights * scale
    text = _("KV = weights at {tokens} tokens").format(tokens=f"{load.crossover_tokens:,}")
    if x > width - MARGIN:
        frame.text(width - MARGIN, y + height + 16, text + " →", "muted", align="right")
        return
    frame.path(line_path([(x, y - 5), (x, y + height + 8)]), "mark")
    half = text_width(text) / 2
    at = min(max(x, MARGIN + half), width - MARGIN - half)
    frame.text(at, y + height + 17, text, align="center")


def _draw_facts(frame: Frame, load: Load, x: float, y: float, width: float) -> float:
    seconds = load.step_seconds
    kind = _("memory") if load.gpu.roofline().bound(load.intensity()) == "memory" else _("arithmetic")
    share = 100 * (load.kv_bytes / load.step_bytes)
    rows = [
        (_("KV of one token"), _("{count} bytes").format(count=f"{load.kv_bytes_per_token:,}")),
        (_("KV of one request"), format_bytes(load.kv_bytes_per_token * load.context_tokens)),
        (_("Requests that fit"), f"{load.capacity:,}"),
        (_("KV outweighs weights from"), _requests_to_cross(load)),
        (_("Read in a step"), _("{size}, {share:.0f} % KV").format(size=format_bytes(load.step_bytes), share=share)),
        (_("A step takes at least"), f"{seconds * 1000:.3g} ms"),
        (_("Tokens a second, all requests"), f"{load.batch_size / seconds:,.0f}"),
        (_("The step is limited by"), kind),
    ]
    for name, value in rows:
        frame.path(line_path([(x, y + 14), (x + width, y + 14)]), "grid")
        frame.text(x, y, name, "muted")
        frame.text(x + width, y, value, bold=True, align="right", size=14)
        y += 31
    return y


def _requests_to_cross(load: Load) -> str:
    needed = load.crossover_tokens // load.context_tokens + 1
    return _("{count} requests").format(count=f"{needed:,}") if needed > 1 else _("the first request")


def _draw_roofline(frame: Frame, load: Load, x: float, y: float, width: float) -> float:
    roof = load.gpu.roofline()
    left, right, top, bottom = x + 62, x + width - 6, y + 12, y + PLOT_HEIGHT - 42
    low_x, high_x = 0.25, max(4096.0, 8 * roof.ridge_point)
    high_y = roof.flops_per_s * 2.5
    low_y = low_x * roof.bandwidth_bytes_per_s

    def at(intensity: float, flops: float) -> tuple[float, float]:
        return (
            left + (right - left) * math.log(max(intensity, low_x) / low_x) / math.log(high_x / low_x),
            bottom - (bottom - top) * math.log(max(flops, low_y) / low_y) / math.log(high_y / low_y),
        )

    for exponent in range(math.ceil(math.log10(low_x)), math.floor(math.log10(high_x)) + 1):
        tick = at(10.0**exponent, low_y)[0]
        frame.path(line_path([(tick, top), (tick, bottom)]), "grid")
        frame.text(tick, bottom + 14, f"{10.0**exponent:,.4g}", "muted", align="center")
    for exponent in range(math.ceil(math.log10(low_y)), math.floor(math.log10(high_y)) + 1):
        tick = at(low_x, 10.0**exponent)[1]
        frame.path(line_path([(left, tick), (right, tick)]), "grid")
        frame.text(left - 6, tick, _rate(10.0**exponent), "muted", align="right")
    frame.path(line_path([(left, top), (left, bottom), (right, bottom)]), "axis")
    frame.text((left + right) / 2, bottom + 34, _("FLOPs per byte moved"), "muted", align="center")
    frame.text(left - 56, top - 10, _("FLOP/s"), "muted")
    ridge = roof.ridge_point
    peak = roof.flops_per_s
    frame.path(line_path([at(low_x, low_y), at(ridge, peak), at(high_x, peak)]), "roof")
    frame.path(line_path([at(ridge, peak), at(ridge, low_y)]), "roof-other")
    ridge_x = at(ridge, low_y)[0]
    frame.text(ridge_x + 6, bottom - 12, _("ridge {ridge:.0f}").format(ridge=ridge), "muted")
    frame.text(right - 2, at(high_x, peak)[1] - 12, _("arithmetic is the limit"), "muted", align="right")
    for batch in TRAIL:
        if batch <= 2 * load.batch_size:
            intensity = load.intensity(batch)
            frame.dot(*at(intensity, roof.attainable_flops_per_s(intensity)), 3, "point-other")
    intensity = load.intensity()
    point = at(intensity, roof.attainable_flops_per_s(intensity))
    frame.dot(*point, 7, "point")
    label = _("{batch} requests: {intensity:.3g} FLOP/byte").format(batch=load.batch_size, intensity=intensity)
    if load.batch_size == 1:
        label = _("1 request: {intensity:.3g} FLOP/byte").format(intensity=intensity)
    if point[0] + text_width(label, 13) + 16 < right:
        frame.text(point[0] + 13, point[1] + 14, label, bold=True)
    else:
        frame.text(point[0] - 12, point[1] + 26, label, bold=True, align="right")
    return y + PLOT_HEIGHT + 4


def _rate(flops: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if flops >= size:
            return f"{flops / size:.0f} {unit}"
    return f"{flops / 1e6:.0f} M"


def _caption(load: Load) -> str:
    values = {
        "model": load.model.name,
        "gpu": load.gpu.name,
        "batch": f"{load.batch_size:,}",
        "context": f"{load.context_tokens:,}",
        "kv": format_bytes(load.kv_bytes),
        "weights": format_bytes(load.weights),
        "ratio": load.kv_bytes / load.weights,
        "capacity": f"{load.capacity:,}",
    }
    if load.weights > load.gpu.memory_bytes:
        return _("The weights of {model} ({weights}) do not fit into one {gpu}.").format(**values)
    message = _(
        "{model}, {batch} x {context} tokens: KV {kv}, {ratio:.2f} times the weights ({weights}); {capacity} requests "
        "of this length fit into one {gpu}."
    )
    return message.format(**values)


def _look_up(value: str | Spec, table: dict[str, Spec], kind: str) -> Spec:
    if not isinstance(value, str):
        return value
    if value not in table:
        raise ValueError(f"expected a {kind} in {', '.join(table)}, got {value!r}")
    return table[value]


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"expected {name} of at least 1, got {value}")
    return value
