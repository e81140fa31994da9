"""Training lowers the loss, and an interrupted run ends where an uninterrupted one does."""

import pytest

from servelab.training.corpus import Corpus
from servelab.training.objective import Measure
from servelab.training.trainer import Trainer, TrainingConfig

STEPS = {"minutes": None, "steps": 40, "batch_tokens": 120, "vocabulary_size": 257, "k": 3}


@pytest.fixture(scope="module")
def corpus(shard):
    return Corpus([shard])


@pytest.fixture
def make(target, corpus, tmp_path):
    def make(name="state", **changes):
        return Trainer(target, corpus, TrainingConfig(**{**STEPS, **changes}), tmp_path / name)

    return make


def weights(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.network.named_parameters()}


def test_the_head_learns(make):
    trainer = make(steps=150, learning_rate=3e-3, num_unrolled=1)
    measure = Measure(trainer.target, trainer.corpus.train, k=3)
    before = measure(trainer.network)
    trainer.run()
    first, last = trainer.progress.curve[1], trainer.progress.curve[-1]
    assert last.loss < 0.95 * first.loss
    assert measure(trainer.network).tokens_per_step > before.tokens_per_step + 0.1


def test_drafts_grow_longer_as_training_goes_on(make):
    trainer, unrolled = make(steps=9, num_unrolled=3), []
    unrolled.append(trainer.num_steps)
    trainer.run(lambda trainer: unrolled.append(trainer.num_steps))
    assert unrolled == [1, 1, 1, 2, 2, 2, 3, 3, 3, 3]


def test_the_curve_goes_from_start_to_end(make):
    trainer = make()
    trainer.run()
    curve = trainer.progress.curve
    assert [point.step for point in curve] == list(range(0, 41, 4))  # a twelfth of 40, rounded up
    assert curve[-1].tokens == trainer.progress.tokens
    assert all(len(point.acceptance) == 3 for point in curve)


@pytest.mark.parametrize("after", [1, 9, 10, 25, 40])
def test_an_interrupted_run_goes_on_to_the_same_weights(make, after):
    """9 batches are an epoch: before, at and after its end, and after the last batch of all."""
    whole = make("whole")
    whole.run()

    def stop(trainer):
        if trainer.progress.step == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make().run(stop)
    resumed = make()
    assert resumed.progress.step == after
    resumed.run()
    assert resumed.progress.step == 40
    for name, weight in weights(whole).items():
        assert weight.equal(weights(resumed)[name]), name
    places = [(point.step, point.tokens, point.loss, point.acceptance) for point in whole.progress.curve]
    assert [(point.step, point.tokens, point.loss, point.acceptance) for point in resumed.progress.curve] == places


def test_a_run_that_is_over_changes_nothing(make):
    trainer = make()
    trainer.run()
    before = weights(trainer)
    again = make()
    again.run()
    assert all(weight.equal(before[name]) for name, weight in weights(again).items())
    assert again.progress.curve == trainer.progress.curve


def test_more_steps_train_on(make):
    make().run()
    more = make(steps=60)
    more.run()
    assert more.progress.step == 60
    steps = [point.step for point in more.progress.curve]
    assert steps[:11] == list(range(0, 41, 4))
    assert len(steps) == 15
    assert steps[-1] == 60


def test_minutes_count_training_alone_over_all_runs(make, monkeypatch):
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr("servelab.training.trainer.time.perf_counter", lambda: float(next(clock)))
    trainer = make(minutes=1.0, steps=None)
    trainer.run()
    assert trainer.share == 1.0
    assert trainer.progress.seconds == 60.0  # 3 for each batch
    assert trainer.progress.step == 20


def test_the_state_is_saved_while_it_trains(make, monkeypatch, tmp_path):
    """A machine that is switched off loses half a minute."""
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("servelab.training.trainer.time.perf_counter", lambda: float(next(clock)))
    saved = []
    trainer = make()
    monkeypatch.setattr(trainer, "save", lambda: saved.append(trainer.progress.step))
    trainer.run()
    assert len(saved) > 10
    assert saved[-1] == 40


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"minutes": 1.0, "steps": 5}, r"either minutes or steps, got minutes=1\.0, steps=5"),
        ({"minutes": None, "steps": None}, "either minutes or steps"),
        ({"minutes": 0.0, "steps": None}, r"minutes as a number above 0, got 0\.0"),
        ({"minutes": float("inf"), "steps": None}, "minutes as a number above 0, got inf"),
        ({"minutes": float("nan"), "steps": None}, "minutes as a number above 0, got nan"),
        ({"minutes": "5", "steps": None}, "minutes as a number above 0, got '5'"),
        ({"learning_rate": -1.0}, r"learning_rate as a number above 0, got -1\.0"),
        ({"steps": 0}, "steps as an integer of at least 1, got 0"),
        ({"k": 1.5}, r"k as an integer of at least 1, got 1\.5"),
        ({"num_unrolled": True}, "num_unrolled as an integer of at least 1, got True"),
        ({"vocabulary_size": 0}, "vocabulary_size as an integer of at least 1"),
    ],
)
def test_options_that_cannot_be(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainingConfig(**{"minutes": None, "steps": 4, **changes})
