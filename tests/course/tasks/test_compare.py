import math

import numpy as np
import pytest
import torch

from servelab.course.tasks.compare import Comparison, NotPlainError, plain


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class LyingInt(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class LyingList(list):
    def __len__(self):
        return 3


@pytest.mark.parametrize(
    "cheat", [EqualToAll(), LyingInt(3), LyingList(), [EqualToAll()], {1: EqualToAll()}, iter([1])]
)
def test_objects_that_could_lie_are_not_plain(cheat):
    with pytest.raises(NotPlainError):
        plain(cheat)


def test_a_class_that_calls_itself_numpy_is_not_plain():
    fake = type("int64", (), {"__module__": "numpy", "tolist": lambda self: 3})
    with pytest.raises(NotPlainError):
        plain(fake())


def test_a_list_that_holds_itself_is_not_plain():
    endless = []
    endless.append(endless)
    with pytest.raises(NotPlainError):
        plain(endless)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (torch.tensor(3), 3),
        (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
        ((1, (2, 3)), [1, [2, 3]]),
        ({("a", 1): (2,)}, {("a", 1): [2]}),
        ({1, 2}, {1, 2}),
    ],
)
def test_numbers_of_numpy_and_torch_become_plain(value, expected):
    got = plain(value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (3, 3, True),
        (1, True, False),
        (True, 1, False),
        (3, 3.0, False),
        (3.0, 3, True),
        (1.0, True, False),
        (0.1 + 0.2, 0.3, True),
        (0.3, 0.3001, False),
        (1.0, math.nan, False),
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        ("a", "a", True),
        (None, None, True),
        (0, None, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([1, 2], [1, 2, 3], False),
        ((1, 2), [1, 2], True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, {2, 1}, True),
        ([1], "1", False),
    ],
)
def test_comparison_is_exact_about_types_and_near_for_floats(expected, got, same):
    assert Comparison()(expected, got) is same


def test_options_of_a_comparison():
    assert Comparison(whole_floats=True)(3, 3.0)
    assert not Comparison(whole_floats=True)(3, 3.5)
    assert Comparison(ordered=False)([[1], [2]], [[2], [1]])
    assert not Comparison(ordered=False)([1, 1, 2], [1, 2, 2])
    assert Comparison(relative=0.1)(100.0, 95)


def test_the_first_difference_has_a_place():
    assert Comparison().first_difference({"A": [1, 2]}, {"A": [1, 3]}) == "['A'][1]"
    assert Comparison().first_difference([1], [1]) is None


def test_an_integer_that_no_float_holds_is_wrong_and_raises_nothing():
    assert not Comparison()(1.5, 10**400)
    assert not Comparison()(float("inf"), 10**400)
