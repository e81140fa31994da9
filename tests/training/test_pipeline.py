"""From nothing to a head that the engine's drafts can come from, and on from every place where it may be stopped."""

import json

import pytest
import torch
from filelock import FileLock

import servelab.training.pipeline as pipeline
from servelab.speculative.head import load_head
from servelab.training import train_draft_head

OPTIONS = {"tokens": 300, "steps": 6, "k": 2, "vocabulary_size": 200, "progress": False}

pytestmark = pytest.mark.usefixtures("short_texts")


@pytest.fixture(scope="module")
def done(target, tmp_path_factory, short_texts):
    """An uninterrupted run, and the folder that it leaves."""
    folder = tmp_path_factory.mktemp("whole")
    run = train_draft_head(target, folder / "head.safetensors", folder=folder / "state", **OPTIONS)
    return run, folder


def weights(path, target):
    """As the engine would load them, but plain."""
    state = load_head(path, target).network.state_dict()
    return {name: value.to_dense() if value.is_mkldnn else value for name, value in state.items()}


def test_a_head_a_card_and_the_numbers_are_written(done, target):
    run, folder = done
    head = load_head(folder / "head.safetensors", target)
    assert len(head.vocabulary) == 200
    assert not list(folder.rglob("*.partial"))
    numbers = json.loads((folder / "head.json").read_text())
    assert numbers["training_steps"] == 6
    assert numbers["num_reply_tokens"] + numbers["num_held_out_tokens"] >= 300
    assert numbers["curve"][-1]["step"] == 6
    assert numbers["acceptance"]["tokens_per_step"] == run.acceptance.tokens_per_step >= 1.0
    assert f"{run.acceptance.tokens_per_step:.2f} tokens per step" in (folder / "head.md").read_text()


def test_the_file_holds_what_was_measured(done, target):
    run, folder = done
    written = weights(folder / "head.safetensors", target)
    assert sum(weight.numel() for weight in written.values()) == run.num_parameters
    assert all(weight.equal(weight.to(torch.bfloat16).float()) for weight in written.values())


def interrupted_while_writing(monkeypatch):
    write = pipeline.TextWriter.write
    monkeypatch.setattr(pipeline.TextWriter, "write", lambda self, number, told: stop() if number else write(self, 0))


def interrupted_while_training(monkeypatch):
    train_on = pipeline.Trainer._train_on
    monkeypatch.setattr(
        pipeline.Trainer, "_train_on", lambda self, batch: stop() if self.progress.step == 4 else train_on(self, batch)
    )


def interrupted_at_the_end(monkeypatch):
    monkeypatch.setattr(pipeline, "data_card", lambda *arguments: stop())


def stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [interrupted_while_writing, interrupted_while_training, interrupted_at_the_end])
def test_an_interrupted_run_goes_on_to_the_same_head(done, target, tmp_path, monkeypatch, interrupted):
    whole, folder = done
    with monkeypatch.context() as patched:
        interrupted(patched)
        with pytest.raises(KeyboardInterrupt):
            train_draft_head(target, tmp_path / "head.safetensors", folder=tmp_path / "state", **OPTIONS)
    run = train_draft_head(target, tmp_path / "head.safetensors", folder=tmp_path / "state", **OPTIONS)
    assert run.acceptance == whole.acceptance
    wanted = weights(folder / "head.safetensors", target)
    for name, weight in weights(tmp_path / "head.safetensors", target).items():
        assert weight.equal(wanted[name]), name


def test_minutes_are_of_all_runs_together(target, tmp_path, monkeypatch):
    """What was written and trained before counts: the same minutes again do nothing more."""
    options = {"minutes": 0.01, "progress": False, "vocabulary_size": 200, "folder": tmp_path / "state"}
    first = train_draft_head(target, tmp_path / "head.safetensors", **options)
    monkeypatch.setattr(pipeline.TextWriter, "write", lambda *arguments: stop())
    again = train_draft_head(target, tmp_path / "head.safetensors", **options)
    assert again == first


def test_one_run_at_a_time(target, tmp_path):
    (tmp_path / "state").mkdir()
    with (
        FileLock(tmp_path / "state" / "lock"),
        pytest.raises(ValueError, match=r"one run at a time, got another at work in .*state"),
    ):
        train_draft_head(target, tmp_path / "head.safetensors", folder=tmp_path / "state", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokens": 0}, "tokens of at least 1, got 0"),
        ({"steps": 0}, "steps as an integer of at least 1, got 0"),
        ({"minutes": -1.0, "steps": None}, "minutes as a number above 0"),
        ({"k": 0}, "k as an integer of at least 1"),
        ({"output": "head.bin"}, r"an output that ends in \.safetensors, got .*head\.bin"),
    ],
)
def test_options_that_cannot_be_change_nothing(target, tmp_path, options, sentence):
    output = tmp_path / options.pop("output", "head.safetensors")
    with pytest.raises(ValueError, match=sentence):
        train_draft_head(target, output, folder=tmp_path / "state", **{**OPTIONS, **options})
    assert not list(tmp_path.iterdir())
