"""The KV calculator without a browser."""

import pytest

from servelab.costs import GPU_SPECS, GPUSpec, kv_weight_crossover_tokens
from servelab.widgets import KVCalculatorWidget


def test_dragging_to_where_kv_overtakes_the_weights():
    widget = KVCalculatorWidget("SmolLM2-135M", "T4", batch_size=7, context_tokens=1_500)
    assert widget.load.kv_bytes < widget.load.weights
    widget.batch_size = 8
    assert widget.load.kv_bytes > widget.load.weights
    assert widget.frame["data"]["kv_bytes"] == 8 * 1_500 * 23_040
    assert 7 * 1_500 <= kv_weight_crossover_tokens(widget.load.model) < 8 * 1_500


def test_eight_bit_kv_doubles_the_requests():
    widget = KVCalculatorWidget("Llama-3-8B", "H100 SXM", context_tokens=4_096)
    before = widget.load.capacity
    widget.kv_bits = 8
    assert 2 * before <= widget.load.capacity <= 2 * before + 1


def test_the_controls_offer_every_model_and_gpu():
    controls = {control["trait"]: control for control in KVCalculatorWidget().controls}
    assert controls["gpu"]["values"] == list(GPU_SPECS)
    assert all(control["label"] for control in controls.values())
    assert set(controls) == {"model", "gpu", "kv_bits", "batch_size", "context_tokens"}


def test_a_machine_of_your_own_joins_the_list():
    laptop = GPUSpec("this machine", int(16e9), 18e9, {"float32": 1e11}, "", "measured")
    widget = KVCalculatorWidget("SmolLM2-135M", laptop)
    assert widget.gpu == "this machine"
    assert widget.load.step_seconds == pytest.approx(widget.load.step_bytes / 18e9)


@pytest.mark.parametrize("number", range(3))
def test_every_question_has_one_right_answer_and_a_reason(number):
    for batch, context in ((1, 1_024), (256, 8_192)):
        widget = KVCalculatorWidget("Llama-3-8B", "H100 SXM", batch_size=batch, context_tokens=context)
        widget._number = number
        widget.ask()
        choices = [identity for identity, _label in widget.question["choices"]]
        right = widget._decision.answer
        assert right in choices
        assert len(set(choices)) == len(choices) >= 2
        wrong = next(choice for choice in choices if choice != right)
        widget.answer(wrong)
        assert widget.feedback["right"] is False
        assert any(character.isdigit() for character in widget.feedback["text"])
        assert widget.question == {}


def test_after_the_answer_the_picture_shows_the_asked_load():
    widget = KVCalculatorWidget("Llama-3-8B", "H100 SXM", batch_size=4, context_tokens=1_024)
    before = widget.load.step_seconds
    widget.ask()
    widget.answer("same")
    assert widget.feedback["right"] is True
    assert widget.batch_size == 8
    assert widget.load.step_seconds / before < 1.25


def test_long_contexts_stop_sharing():
    widget = KVCalculatorWidget("Llama-3-8B", "H100 SXM", batch_size=64, context_tokens=16_384)
    widget.ask()
    widget.answer("double")
    assert widget.feedback["right"] is True


def test_messages_sentence_and_figure():
    widget = KVCalculatorWidget()
    widget._received(widget, {"do": "ask"}, [])
    widget._received(widget, {"do": "skip"}, [])
    assert widget.feedback["text"]
    assert widget.score == [0, 0]
    assert "each brings its own KV cache" in widget.sentence
    assert widget.static_figure(800).layout.width == 800
    assert widget.alt


def test_bad_input():
    widget = KVCalculatorWidget()
    with pytest.raises(ValueError, match="got 'GPT'"):
        widget.model = "GPT"
    with pytest.raises(ValueError, match="batch_size of at least 1, got 0"):
        widget.batch_size = 0
    with pytest.raises(ValueError, match="expected an open question"):
        widget.answer("same")


@pytest.mark.parametrize("spec", [None, 5, []])
def test_what_is_no_model_and_no_gpu_is_refused(spec):
    with pytest.raises(ValueError, match="expected model as a name of MODEL_SPECS or a ModelSpec, got"):
        KVCalculatorWidget(model=spec)
    with pytest.raises(ValueError, match="expected gpu as a name of GPU_SPECS or a GPUSpec, got"):
        KVCalculatorWidget(gpu=spec)


def test_no_answer_to_the_question_of_capacity_stands_in_the_picture():
    widget = KVCalculatorWidget("SmolLM2-135M", "H100 SXM", batch_size=1, context_tokens=1024)
    widget.ask()
    widget.answer(widget.question["choices"][0][0])
    widget.ask()
    assert "fit at once" in widget.question["prompt"]
    shown = {mark["text"] for mark in widget.frame["marks"] if mark.get("text")}
    assert not shown & {label for _identity, label in widget.question["choices"]}
