import numpy as np
import pytest
import torch

from servelab.course.markup import block, fill, inline, number, plain_number, text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (11676, "11,676"),
        (0, "0"),
        (2.0, "2"),
        (2.5, "2.5"),
        (0.00213, "0.00213"),
        (5.3467, "5.35"),
        (1203.4, "1,203"),
        (99.96, "100"),
        (-0.5, "-0.5"),
        (1.5e-12, "1.50e-12"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_read_well(value, text):
    assert number(value) == text


def test_placeholders_take_plain_and_specified_formats():
    values = {"n": 11676, "x": 2.34567, "t": torch.tensor(0.25), "i": np.int64(7), "name": "paged"}
    text = "{n} {n:d} {x} {x:.1f} {t} {i} {name}"
    assert fill(text, values, "99.x") == "11,676 11676 2.35 2.3 0.25 7 paged"


def test_a_missing_placeholder_is_named():
    with pytest.raises(ValueError, match=r"99.x: its text needs 'hole'; reveal was given \['free'\]"):
        fill("{hole}", {"free": 1}, "99.x")


def test_markdown_becomes_html_and_html_stays_text():
    assert inline("**K** and `V`") == "<strong>K</strong> and <code>V</code>"
    assert "<table>" in block("| a |\n|---|\n| 1 |")
    assert "<script>" not in block("<script>alert(1)</script>")
    assert text_of("<b>\n") == "&lt;b&gt;<br>"


def test_scalars_of_numpy_and_torch_are_numbers():
    assert plain_number(np.float32(0.5)) == 0.5
    assert type(plain_number(np.float64(2))) is float
    assert type(plain_number(torch.tensor(3))) is int
    assert plain_number("paged") == "paged"


def test_a_float_beyond_all_use_is_shown_in_one_line():
    assert number(1e300) == "1.00e+300"
    assert number(-4e22) == "-4.00e+22"
