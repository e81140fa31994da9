"""The order of tokens: highest first, lowest id among equals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.sampling.order import argmax_rows, first, highest

ROWS = st.lists(st.one_of(st.integers(-2, 2).map(float), st.just(-math.inf)), min_size=1, max_size=30)


def by_hand(row: list[float]) -> list[int]:
    """All ids in their order, by a sort that says it."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@settings(deadline=None)
@given(row=ROWS, n=st.integers(1, 30))
def test_first_and_highest_follow_the_order(row, n):
    n = min(n, len(row))
    values = np.array(row, dtype=np.float32)
    expected = by_hand(row)[:n]
    assert first(values, n).tolist() == sorted(expected)
    assert highest(values, n).tolist() == [row[token] for token in expected]
    assert first(values, n, row[expected[-1]]).tolist() == sorted(expected)
    assert argmax_rows(torch.tensor([row])).tolist() == by_hand(row)[:1]


class OtherDevice(torch.Tensor):
    """A tensor of the CPU that says it is elsewhere: what a GPU's would run through, without one."""

    @property
    def device(self):
        return torch.device("cuda")


def test_another_device_finds_the_same_argmax():
    rows = torch.randint(-2, 3, (50, 20), generator=torch.Generator().manual_seed(1)).float()
    assert argmax_rows(rows.as_subclass(OtherDevice)).tolist() == argmax_rows(rows).tolist()


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_argmax_finds_the_first_of_equals_far_apart(num_rows):
    """Wide rows are searched in vectors and by several threads; the lowest id must win all the same."""
    rows = torch.zeros(num_rows, 49_152)
    rows[:, [30_000, 1_234, 49_151, 1_235]] = 5.0
    assert argmax_rows(rows).tolist() == [1_234] * num_rows
    rows[:, 0] = 5.0
    assert argmax_rows(rows).tolist() == [0] * num_rows


def test_nan_is_found_and_a_view_is_read_right():
    rows = torch.zeros(2, 100)
    rows[1, 77] = math.nan
    assert argmax_rows(rows)[1] == 77
    columns = torch.arange(12.0).reshape(4, 3).T  # [3, 4], not contiguous
    assert argmax_rows(columns).tolist() == [3, 3, 3]
    assert first(columns[1].numpy(), 2).tolist() == [2, 3]
    assert argmax_rows(torch.ones(2, 3, requires_grad=True)).tolist() == [0, 0]
    assert argmax_rows(torch.tensor([[1.0, 3.0, 3.0]]).bfloat16()).tolist() == [1]


def test_the_row_itself_is_not_sorted():
    row = np.array([3.0, 1.0, 2.0], dtype=np.float32)
    highest(row, 2)
    first(row, 3)
    assert row.tolist() == [3.0, 1.0, 2.0]
