"""`KVCalculatorWidget`: drag batch and context, and see memory, the KV cache and the roofline answer."""

from collections.abc import Callable
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets

from servelab.costs import GPU_SPECS, MODEL_SPECS, GPUSpec, ModelSpec
from servelab.figures import Frame, calculator_frame, frame_figure
from servelab.figures.calculator import Load, format_bytes
from servelab.translation import _
from servelab.widgets.decision import Decision
from servelab.widgets.player import MAX_WIDTH, MIN_WIDTH, words
from servelab.widgets.style import css, script

BATCH_SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
CONTEXTS = [64, 128, 256, 384, 512, 768, 1_024, 1_500, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 32_768]
CONTEXTS += [65_536, 131_072, 163_840]


class KVCalculatorWidget(anywidget.AnyWidget):
    """Model, GPU, batch and context on controls; weights, KV cache, room and roofline in the picture.

    model, gpu: names of ``MODEL_SPECS`` and ``GPU_SPECS``, or a specification of your own (a GPU made from this
    machine's measured ceilings, for example), which joins the list. "What next?" asks what a change would do.
    """

    _esm = script("listen.js", "picture.js", "calculator.js")
    _css = css()

    title = traitlets.Unicode("").tag(sync=True)
    model = traitlets.Unicode("").tag(sync=True)
    gpu = traitlets.Unicode("").tag(sync=True)
    batch_size = traitlets.Int(1).tag(sync=True)
    context_tokens = traitlets.Int(1024).tag(sync=True)
    kv_bits = traitlets.Int(16).tag(sync=True)
    controls: Any = traitlets.List().tag(sync=True)
    width = traitlets.Int(900).tag(sync=True)
    frame = traitlets.Dict().tag(sync=True)
    question = traitlets.Dict().tag(sync=True)
    feedback = traitlets.Dict().tag(sync=True)
    score = traitlets.List([0, 0]).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        model: str | ModelSpec = "SmolLM2-135M",
        gpu: str | GPUSpec = "H100 SXM",
        *,
        batch_size: int = 1,
        context_tokens: int = 1024,
        **values: Any,
    ) -> None:
        if not isinstance(model, (str, ModelSpec)):
            raise ValueError(f"expected model as a name of MODEL_SPECS or a ModelSpec, got {model!r}")
        if not isinstance(gpu, (str, GPUSpec)):
            raise ValueError(f"expected gpu as a name of GPU_SPECS or a GPUSpec, got {gpu!r}")
        self._models = dict(MODEL_SPECS) if isinstance(model, str) else {model.name: model, **MODEL_SPECS}
        self._gpus = dict(GPU_SPECS) if isinstance(gpu, str) else {gpu.name: gpu, **GPU_SPECS}
        self._decision: Decision | None = None
        self._after: dict[str, int] = {}
        self._number = 0
        super().__init__(
            title=_("KV calculator"),
            model=model if isinstance(model, str) else model.name,
            gpu=gpu if isinstance(gpu, str) else gpu.name,
            batch_size=batch_size,
            context_tokens=context_tokens,
            words=words(),
            **values,
        )
        self.controls = self._make_controls()
        self._redraw()
        self.observe(self._redraw, ["model", "gpu", "batch_size", "context_tokens", "kv_bits", "width"])
        self.on_msg(self._received)

    @property
    def load(self) -> Load:
        """The load shown, with everything calculated from it."""
        return self._load()

    @property
    def sentence(self) -> str:
        """What a reader of this widget can say afterwards."""
        return str(self.frame["sentence"])

    @property
    def alt(self) -> str:
        """The finding of the picture shown, for those who do not see it."""
        return str(self.frame["alt"])

    def static_figure(self, width: int = 900) -> go.Figure:
        """The picture shown now as a Plotly figure."""
        return frame_figure(self._make_frame(width))

    def ask(self) -> None:
        """Ask what a change of the load would do; three kinds of question in turn."""
        makers: tuple[Callable[[], tuple[Decision, dict[str, int]]], ...] = (
            self._ask_time,
            self._ask_capacity,
            self._ask_heavier,
        )
        self._decision, self._after = makers[self._number % len(makers)]()
        self._number += 1
        self.feedback = {}
        self.question = {
            "prompt": self._decision.prompt,
            "rule": self._decision.rule,
            "pointing": "",
            "choices": [list(choice) for choice in self._decision.choices],
        }

    def answer(self, choice: str) -> None:
        """Answer the open question: the verdict appears and the picture shows the changed load.

        Raises ValueError when nothing was asked or the choice is not offered.
        """
        decision = self._decision
        if decision is None:
            raise ValueError(f"expected an open question, got the answer {choice!r} to none")
        offered = [identity for identity, _label in decision.choices]
        if choice not in offered:
            raise ValueError(f"expected one of {offered}, got {choice!r}")
        right, text = decision.verdict(choice)
        self.score = [self.score[0] + right, self.score[1] + 1]
        self._conclude()
        self.feedback = {"right": right, "text": text}

    def skip(self) -> None:
        """Close the open question and show what happens."""
        if self._decision is not None:
            text = self._decision.because
            self._conclude()
            self.feedback = {"right": True, "text": text}

    def _conclude(self) -> None:
        after, self._decision, self._after, self.question = self._after, None, {}, {}
        for name, value in after.items():
            setattr(self, name, value)

    def _ask_time(self) -> tuple[Decision, dict[str, int]]:
        now, doubled = self._load(), self._load(batch_size=2 * self.batch_size)
        factor = doubled.step_seconds / now.step_seconds
        share = 100 * now.kv_bytes / now.step_bytes
        values = {"batch": f"{2 * self.batch_size:,}", "now": f"{self.batch_size:,}", "factor": factor, "share": share}
        because = _(
            "A step takes {factor:.2f} times as long: {share:.0f} % of it was KV, and only the weights are shared."
        )
        if doubled.gpu.roofline().bound(doubled.intensity()) == "compute":
            because = _("A step takes {factor:.2f} times as long: past the ridge, arithmetic is the limit.")
        decision = Decision(
            step=0,
            prompt=_("You double the batch from {now} to {batch}. How much longer does a decode step take?").format(
                **values
            ),
            rule=_("A step takes as long as the slower of its memory traffic and its arithmetic."),
            answer="same" if factor < 1.25 else "some" if factor < 1.75 else "double",
            because=because.format(**values),
            choices=(
                ("same", _("Hardly longer (under 1.25 times)")),
                ("some", _("In between")),
                ("double", _("About twice (over 1.75 times)")),
            ),
        )
        return decision, {"batch_size": 2 * self.batch_size}

    def _ask_capacity(self) -> tuple[Decision, dict[str, int]]:
        # A context that is not shown: the picture says how many fit at the one that is.
        context = next((size for size in CONTEXTS if size >= 4 * self.context_tokens), CONTEXTS[0])
        load = self._load(context_tokens=context)
        no_weights = load.gpu.memory_bytes // (load.kv_bytes_per_token * load.context_tokens)
        options = {load.capacity, load.capacity // 2, 2 * load.capacity + 1}
        if no_weights > 1.1 * load.capacity:
            options.add(no_weights)
        values = {
            "context": f"{load.context_tokens:,}",
            "memory": format_bytes(load.gpu.memory_bytes),
            "weights": format_bytes(load.weights),
            "each": format_bytes(load.kv_bytes_per_token * load.context_tokens),
            "count": f"{load.capacity:,}",
        }
        decision = Decision(
            step=0,
            prompt=_("How many requests of {context} tokens fit at once?").format(**values),
            rule=_("Weights first; what is left of the memory is the KV pool."),
            answer=str(load.capacity),
            because=_("{memory} minus {weights} of weights, divided by {each} a request: {count}.").format(**values),
            choices=tuple((str(option), f"{option:,}") for option in sorted(options)),
        )
        return decision, {"context_tokens": context, "batch_size": max(1, load.capacity)}

    def _ask_heavier(self) -> tuple[Decision, dict[str, int]]:
        context = next((size for size in CONTEXTS if size >= 4 * self.context_tokens), CONTEXTS[-1])
        load = self._load(context_tokens=context)
        values = {
            "batch": f"{self.batch_size:,}",
            "context": f"{context:,}",
            "kv": format_bytes(load.kv_bytes),
            "weights": format_bytes(load.weights),
            "tokens": f"{self.batch_size * context:,}",
            "crossover": f"{load.crossover_tokens:,}",
        }
        because = _(
            "{tokens} tokens are stored ({kv}); the cache weighs as much as the weights ({weights}) at {crossover}."
        )
        decision = Decision(
            step=0,
            prompt=_("At {batch} requests of {context} tokens each, which is heavier?").format(**values),
            rule=_("KV grows with batch x context; the weights do not."),
            answer="kv" if load.kv_bytes > load.weights else "weights",
            because=because.format(**values),
            choices=(("kv", _("The KV cache")), ("weights", _("The weights"))),
        )
        return decision, {"context_tokens": context}

    def _load(self, **changes: int) -> Load:
        batch = changes.get("batch_size", self.batch_size)
        context = changes.get("context_tokens", self.context_tokens)
        return Load(self._models[self.model], self._gpus[self.gpu], batch, context, self.kv_bits / 8)

    def _make_frame(self, width: int) -> Frame:
        return calculator_frame(
            self._models[self.model],
            self._gpus[self.gpu],
            self.batch_size,
            self.context_tokens,
            bytes_per_element=self.kv_bits / 8,
            width=width,
        )

    def _redraw(self, _change: Any = None) -> None:
        self.frame = self._make_frame(min(max(self.width, MIN_WIDTH), MAX_WIDTH)).to_json()

    def _make_controls(self) -> list[dict[str, Any]]:
        """The front end's controls, in order: each sets one trait."""
        return [
            {"kind": "select", "trait": "model", "label": _("Model"), "values": list(self._models)},
            {"kind": "select", "trait": "gpu", "label": _("GPU"), "values": list(self._gpus)},
            {"kind": "select", "trait": "kv_bits", "label": _("KV bits"), "values": [16, 8, 4]},
            {"kind": "slider", "trait": "batch_size", "label": _("Batch (requests)"), "values": BATCH_SIZES},
            {"kind": "slider", "trait": "context_tokens", "label": _("Context (tokens each)"), "values": CONTEXTS},
        ]

    @traitlets.validate("model", "gpu")
    def _check_name(self, proposal: Any) -> str:
        known = self._models if proposal["trait"].name == "model" else self._gpus
        if proposal["value"] not in known:
            raise ValueError(f"expected one of {', '.join(known)}, got {proposal['value']!r}")
        return str(proposal["value"])

    @traitlets.validate("batch_size", "context_tokens")
    def _check_count(self, proposal: Any) -> int:
        if proposal["value"] < 1:
            raise ValueError(f"expected {proposal['trait'].name} of at least 1, got {proposal['value']}")
        return int(proposal["value"])

    def _received(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        match message:
            case {"do": "ask"}:
                self.ask()
            case {"do": "answer", "choice": str(choice)} if self._decision is not None:
                self.answer(choice)
            case {"do": "skip"}:
                self.skip()
