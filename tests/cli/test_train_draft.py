"""`servelab train-draft` passes its options on, says what came out, and says in one sentence what is in the way."""

import json

import pytest
from typer.testing import CliRunner

import servelab.model
import servelab.training
from servelab.cli import app
from servelab.model import ModelUnavailable, toy_model
from servelab.training import text, train_draft_head


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command with a toy for the model, short texts, and a cache of its own."""
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(servelab.model, "load_model", lambda name: toy_model())
    monkeypatch.setattr(text, "TEXTS_PER_SHARD", 16)
    monkeypatch.setattr(text, "REPLY_TOKENS", (8, 16))
    monkeypatch.setattr(text, "GREEDY_SHARE", 0.8)
    return lambda *arguments: CliRunner().invoke(app, ["train-draft", *arguments])


def test_a_head_from_nothing(run, tmp_path):
    answer = run("--tokens", "200", "--steps", "4", "--k", "2")
    assert answer.exit_code == 0, answer.output
    path = tmp_path / "cache" / "draft-heads" / "smollm2-135m.safetensors"
    assert path.exists()
    numbers = json.loads(path.with_suffix(".json").read_text())
    assert (
        f"Tokens per step of the target with drafts of 2: {numbers['acceptance']['tokens_per_step']:.2f}."
        in answer.output
    )
    assert f"Trained on {numbers['num_reply_tokens']} tokens that random-llama wrote." in answer.output
    assert f'DraftHead("{path}")' in answer.output


def test_every_option_is_passed_on(run, tmp_path, monkeypatch):
    passed = {}

    def train(target, output, **options):
        passed.update(options, output=output)
        raise ValueError("enough")

    monkeypatch.setattr(servelab.training, "train_draft_head", train)
    run("--minutes", "3", "--tokens", "50", "--steps", "7", "--output", "a.safetensors", "--seed", "5", "--k", "3")
    assert str(passed.pop("output")) == "a.safetensors"
    assert passed == {"minutes": 3.0, "tokens": 50, "steps": 7, "seed": 5, "k": 3}


@pytest.mark.parametrize(
    "reason",
    [ValueError("expected this, got that"), ModelUnavailable("no such model"), OSError(28, "No space left on device")],
)
def test_what_is_in_the_way_is_one_sentence(run, monkeypatch, reason):
    def fail(*arguments, **options):
        raise reason

    monkeypatch.setattr(servelab.training, "train_draft_head", fail)
    answer = run()
    assert answer.exit_code == 1
    assert answer.stderr.strip() == str(reason)


def test_stopped_it_says_how_to_go_on(run, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(servelab.training, "train_draft_head", stop)
    answer = run()
    assert answer.exit_code == 130
    assert answer.stderr.strip() == "Stopped: the same command goes on from here."


@pytest.mark.parametrize(
    "wrong", [["--minutes", "0"], ["--tokens", "0"], ["--k", "0"], ["--seed", "-1"], ["--steps", "x"]]
)
def test_options_that_cannot_be(run, tmp_path, wrong):
    assert run(*wrong).exit_code == 2
    assert not (tmp_path / "cache").exists()


def test_the_command_calls_the_function_of_the_package():
    assert servelab.training.train_draft_head is train_draft_head
