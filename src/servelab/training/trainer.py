"""Stage 3: train the head on a corpus, for a time or a number of steps, from wherever the last run stopped."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from servelab.engine.interrupt import uninterrupted
from servelab.model import Model
from servelab.speculative.head import HeadNetwork, initial_network
from servelab.training.corpus import Corpus, Text
from servelab.training.initial import regression_start
from servelab.training.objective import Acceptance, Measure, Target, draw_candidates, loss
from servelab.training.state import CurvePoint, load_state, save_state

SAVE_SECONDS = 30.0
CURVE_POINTS = 12
CURVE_TEXTS = 12
WARMUP_STEPS = 30
LAST_RATE = 0.02  # of the learning rate, at the end
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How long, and how. Raises ValueError that names the field.

    minutes: of training, over all runs; or steps: batches, which gives the same head on the same texts every time.
    seed: of the first weights and the order of the texts. vocabulary_size: tokens that can be drafted.
    num_candidates: of them, those that a batch is trained to tell apart.
    num_unrolled: draft steps that a batch is trained on at the end; training begins with one, which costs least and is
        the base of all, and takes one more in each of as many parts.
    k: length of the drafts that acceptance is measured with.
    hidden_weight: of the distance to the target's state in the loss.
    """

    minutes: float | None = 5.0
    steps: int | None = None
    seed: int = 0
    vocabulary_size: int = 4096
    num_candidates: int = 3072
    num_unrolled: int = 3
    k: int = 4
    batch_tokens: int = 500
    learning_rate: float = 3e-4
    hidden_weight: float = 0.5

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(f"expected either minutes or steps, got minutes={self.minutes!r}, steps={self.steps!r}")
        for name in ("minutes", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"expected {name} as a number above 0, got {value!r}")
        for name in ("steps", "vocabulary_size", "num_candidates", "num_unrolled", "k", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise ValueError(f"expected {name} as an integer of at least 1, got {value!r}")


class Trainer:
    """Trains a head for `model` on `corpus`. state_path: where the training stands, read now and written as it goes.

    network, optimizer, progress: as they are; vocabulary: the tokens that can be drafted, chosen from the corpus.
    """

    def __init__(self, model: Model, corpus: Corpus, config: TrainingConfig, state_path: Path) -> None:
        self.model, self.corpus, self.config, self.state_path = model, corpus, config, state_path
        size = min(config.vocabulary_size, model.config.vocab_size)
        self.vocabulary = corpus.vocabulary(size, model.config.vocab_size)
        self.target = Target(model, self.vocabulary)
        if state_path.exists():
            self.network = initial_network(model)
        else:
            self.network = regression_start(self.target, corpus.train, config.seed)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=config.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
        )
        self.progress = load_state(state_path, self.network, self.optimizer)
        self._measure = Measure(self.target, corpus.held_out[:CURVE_TEXTS], config.k)

    @property
    def share(self) -> float:
        """Of the training that is done, 0 to 1."""
        return self._share(self.progress.step, self.progress.seconds)

    @property
    def num_steps(self) -> int:
        """Draft steps that the next batch is trained on."""
        return min(self.config.num_unrolled, 1 + int(self.share * self.config.num_unrolled))

    def _share(self, step: int, seconds: float) -> float:
        if self.config.steps is not None:
            return min(1.0, step / self.config.steps)
        assert self.config.minutes is not None
        return min(1.0, seconds / (60 * self.config.minutes))

    def run(self, told: Callable[["Trainer"], object] = lambda trainer: None) -> None:
        """Train to the end. told: called after each batch. Interrupted, what is done is saved before it raises."""
        saved = time.perf_counter()
        try:
            for batch in self._batches():
                if self._is_point_due():
                    self._add_curve_point()
                if self.share >= 1:
                    break
                self._train_on(batch)
                told(self)
                if time.perf_counter() - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.perf_counter()
        finally:
            self.save()

    def save(self) -> None:
        with uninterrupted():
            save_state(self.state_path, self.network, self.optimizer, self.progress)

    def measure(self, network: HeadNetwork | None = None) -> Acceptance:
        """Acceptance on all texts that are held out, of this head or of another for the same target."""
        return Measure(self.target, self.corpus.held_out, self.config.k)(network or self.network)

    def _batches(self) -> Iterator[list[Text]]:
        """Without end, from where the training stands."""
        for epoch in itertools.count(self.progress.epoch):
            batches = self.corpus.batches(self.config.batch_tokens, self.config.seed, epoch)
            yield from itertools.islice(batches, self.progress.batch, None)
            self.progress.epoch, self.progress.batch = epoch + 1, 0

    def _train_on(self, batch: list[Text]) -> None:
        started = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * self._schedule()
        config, generator = self.config, torch.Generator().manual_seed(self.config.seed + self.progress.step)
        candidates = draw_candidates(self.target, batch, config.num_candidates, generator)
        value = loss(self.network, self.target, batch, self.num_steps, config.hidden_weight, candidates)
        self.optimizer.zero_grad()
        torch.autograd.backward(value)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_NORM)
        with uninterrupted():
            self.optimizer.step()
            progress, number = self.progress, value.item()
            progress.loss = number if not progress.step else 0.98 * progress.loss + 0.02 * number
            progress.step += 1
            progress.batch += 1
            progress.tokens += sum(map(len, batch))
            progress.seconds += time.perf_counter() - started

    def _schedule(self) -> float:
        """The share of the learning rate: a linear warm-up, then half a cosine."""
        warm = min(1.0, (self.progress.step + 1) / WARMUP_STEPS)
        return warm * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * self.share)))

    def _is_point_due(self) -> bool:
        """At the start, at the end, and in equal distances of what there is to do."""
        if not self.progress.curve:
            return True
        last = self.progress.curve[-1]
        if self.share >= 1:
            return last.step < self.progress.step
        return self.share - self._share(last.step, 60 * last.minutes) >= 1 / CURVE_POINTS

    def _add_curve_point(self) -> None:
        measured, progress = self._measure(self.network), self.progress
        progress.curve.append(
            CurvePoint(
                minutes=progress.seconds / 60,
                step=progress.step,
                tokens=progress.tokens,
                loss=progress.loss,
                acceptance=measured.per_position,
                tokens_per_step=measured.tokens_per_step,
            )
        )
