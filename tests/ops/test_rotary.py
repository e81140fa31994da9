import math

import pytest
import torch

from servelab.ops import RopeScaling, rotary_embedding, rotary_frequencies, rotary_tables

LLAMA3 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


def rotate(x, positions, theta=100.0):
    cos, sin = rotary_tables(torch.tensor(positions), rotary_frequencies(x.shape[-1], theta), x.dtype)
    return rotary_embedding(x, cos, sin)


def test_turns_each_pair_by_position_times_frequency():
    x = torch.randn(3, 2, 8)
    out = rotate(x, [0, 5, 117])
    for token, position in enumerate([0, 5, 117]):
        for d in range(4):
            angle = position * 100.0 ** (-2 * d / 8)
            pair = torch.complex(x[token, :, d], x[token, :, d + 4]) * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(out[token, :, d], pair.real, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(out[token, :, d + 4], pair.imag, rtol=1e-4, atol=1e-5)


def test_the_product_of_query_and_key_depends_on_their_distance_only():
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    near = (rotate(q, [7]) * rotate(k, [3])).sum()
    far = (rotate(q, [107]) * rotate(k, [103])).sum()
    other = (rotate(q, [107]) * rotate(k, [104])).sum()
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-4)
    assert abs(near - other) > 1e-2


def test_llama3_scaling_keeps_high_frequencies_and_stretches_low_ones():
    plain, scaled = rotary_frequencies(128, 500_000.0), rotary_frequencies(128, 500_000.0, LLAMA3)
    ratio = plain / scaled
    wavelength = 2 * math.pi / plain
    assert ratio[wavelength < 8192 / 4].eq(1).all()
    torch.testing.assert_close(ratio[wavelength > 8192], torch.full_like(ratio[wavelength > 8192], 8.0))
    between = ratio[(wavelength > 8192 / 4) & (wavelength < 8192)]
    assert len(between)
    assert between.min() > 1
    assert between.max() < 8


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match=r"even head_dim.*got 7"):
        rotary_frequencies(7, 10_000.0)
