"""The calculator's picture shows what servelab.costs calculates."""

import pytest

from servelab.costs import GPU_SPECS, MODEL_SPECS, decode_step_seconds, kv_cache_bytes_per_token, weight_bytes
from servelab.figures import calculator_figure, calculator_frame
from servelab.figures.calculator import format_bytes


def _texts(frame):
    return [mark["text"] for mark in frame.marks if mark.get("text")]


def test_the_numbers_are_those_of_costs():
    spec, gpu = MODEL_SPECS["Llama-3-8B"], GPU_SPECS["H100 SXM"]
    data = calculator_frame("Llama-3-8B", "H100 SXM", 32, 4_096).data
    assert data["kv_bytes"] == 32 * 4_096 * kv_cache_bytes_per_token(spec)
    assert data["weight_bytes"] == weight_bytes(spec)
    assert data["capacity"] == (gpu.memory_bytes - weight_bytes(spec)) // (131_072 * 4_096) == 119
    assert data["step_seconds"] == decode_step_seconds(spec, gpu, 32, 4_096)
    assert data["intensity"] < data["ridge_point"]


def test_the_numbers_stand_in_the_picture():
    texts = _texts(calculator_frame("SmolLM2-135M", "T4", 16, 1_500))
    assert "23,040 bytes" in texts
    assert "KV = weights at 11,676 tokens" in texts
    assert "8 requests" in texts  # 8 x 1,500 tokens are the first to outweigh the weights
    assert "16 requests: 7.25 FLOP/byte" in texts


def test_what_does_not_fit_is_marked():
    assert not any(mark["style"] == "over" for mark in calculator_frame("Llama-3-8B", "H100 SXM", 8, 8_192).marks)
    over = calculator_frame("Llama-3-8B", "H100 SXM", 64, 8_192)
    assert any(mark["style"] == "over" for mark in over.marks)
    weights = calculator_frame("Llama-3-70B", "L4", 1, 1_024)
    assert weights.data["capacity"] == 0
    assert "do not fit" in weights.caption


@pytest.mark.parametrize("width", [560, 900, 1200])
@pytest.mark.parametrize("model", list(MODEL_SPECS))
@pytest.mark.parametrize("gpu", ["T4", "H200 SXM"])
def test_every_pair_fits_its_picture(model, gpu, width):
    frame = calculator_frame(model, gpu, 64, 2_048, width=width)
    for mark in frame.marks:
        if mark["shape"] in ("rect", "dot", "text"):
            assert 0 <= mark["x"] <= width, mark
            assert 0 <= mark["y"] <= frame.height, mark


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (23_040, "23.0 kB"),
        (269_030_016, "269 MB"),
        (1.342e12, "1.34 TB"),
        (9.999e6, "10.0 MB"),
    ],
)
def test_bytes_have_three_digits(value, text):
    assert format_bytes(value) == text


def test_the_figure_is_the_frame():
    figure = calculator_figure("Qwen3-8B", "RTX 4090", 4, 2_048)
    assert "Qwen3-8B, 4 x 2,048 tokens" in figure.layout.meta["alt"]


def test_bad_input():
    with pytest.raises(ValueError, match=r"expected a model in SmolLM2-135M.*, got 'GPT'"):
        calculator_frame("GPT", "T4")
    with pytest.raises(ValueError, match=r"expected a GPU in A100.*, got 'TPU'"):
        calculator_frame("Qwen3-8B", "TPU")
    with pytest.raises(ValueError, match="batch_size of at least 1, got 0"):
        calculator_frame("Qwen3-8B", "T4", 0)
