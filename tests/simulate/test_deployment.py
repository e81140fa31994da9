"""A step on paper: bytes and FLOPs of `servelab.costs`, and what cannot be is refused."""

import dataclasses

import pytest

from servelab.costs import GPU_SPECS, MODEL_SPECS, StepWork
from servelab.simulate import Deployment

LLAMA = MODEL_SPECS["Llama-3-70B"]
H100 = GPU_SPECS["H100 SXM"].roofline()


def one_token(context: int = 1) -> StepWork:
    work = StepWork()
    work.add(1, context - 1)
    return work


def test_eight_bit_weights_are_read_in_half_the_time_but_for_the_output_projection():
    wide = Deployment(spec=LLAMA, roofline=H100)
    narrow = Deployment(spec=LLAMA, roofline=H100, bytes_per_parameter=1, bytes_per_embedding=2)
    output = LLAMA.vocab_size * LLAMA.hidden_size
    saved = wide.step_seconds(one_token()) - narrow.step_seconds(one_token())
    layers = LLAMA.num_parameters - 2 * output
    assert saved == pytest.approx(layers / H100.bandwidth_bytes_per_s)


def test_fp8_halves_the_bytes_of_keys_and_values():
    wide, narrow = (Deployment(spec=LLAMA, roofline=H100, bytes_per_element=size) for size in (2, 1))
    assert wide.kv_bytes_per_token == 327_680 == 2 * narrow.kv_bytes_per_token
    saved = wide.step_seconds(one_token(8_000)) - narrow.step_seconds(one_token(8_000))
    assert saved == pytest.approx(8_000 * 163_840 / H100.bandwidth_bytes_per_s)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"efficiency": 0}, "efficiency above 0, got 0"),
        ({"efficiency": float("nan")}, "efficiency above 0, got nan"),
        ({"efficiency": "high"}, "efficiency above 0, got 'high'"),
        ({"bytes_per_parameter": 0}, "bytes_per_parameter above 0, got 0"),
        ({"bytes_per_embedding": -1}, "bytes_per_embedding above 0, got -1"),
        ({"bytes_per_element": None}, "bytes_per_element above 0, got None"),
        ({"overhead_s": -0.1}, "overhead_s as seconds of at least 0, got -0.1"),
        ({"overlap": 1}, "overlap to be True or False, got 1"),
    ],
)
def test_what_cannot_be(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(Deployment(spec=LLAMA, roofline=H100), **values)
