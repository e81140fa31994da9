"""`SamplingParams`: what is refused, with which words, and what is kept."""

import copy
import dataclasses
import math
import pickle
from types import MappingProxyType

import pytest

from servelab.sampling import SamplingParams

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("max_tokens", [0, -1, 1.0, True, "5", None])
def test_max_tokens_is_a_whole_number_of_at_least_one(max_tokens):
    """`max_tokens=0` asks for nothing: refused, not answered with one token [vllm#6521]."""
    with pytest.raises(ValueError, match=r"expected max_tokens to be an integer >= 1, got"):
        SamplingParams(max_tokens=max_tokens)


# For each field: what is allowed at its ends, what is refused, and the words.
RULES = {
    "min_tokens": ([0, 1, 64], [-1, 65, 1.0, True, None, "1"], r"an integer in 0\.\.max_tokens \(64\)"),
    "temperature": ([0, 0.0, 1, 5e-324, 1.7e308], [-0.1, NAN, INF, "1", True, None, 10**400], "a finite number >= 0"),
    "top_k": ([0, 1, 10**9], [-1, 1.0, True, None], r"an integer >= 0 \(0: all tokens\)"),
    "top_p": ([1, 1.0, 0.5, 5e-324], [0, 0.0, -0.1, 1.01, NAN, "1", True, None], r"a number in \(0, 1\]"),
    "min_p": ([0, 1, 0.5], [-0.1, 1.01, NAN, "0", False, None], r"a number in 0\.\.1"),
    "repetition_penalty": ([1, 0.01, 100], [0, -1, 0.009, 101, NAN, INF, True, None], r"a number in 0\.01\.\.100"),
    "presence_penalty": ([0, -2, 2], [-2.1, 2.1, NAN, True, None], r"a number in -2\.\.2"),
    "frequency_penalty": ([0, -2, 2], [-2.1, 2.1, NAN, True, None], r"a number in -2\.\.2"),
    "seed": ([None, 0, 2**63 - 1], [-1, 2**63, 1.5, True], r"None or an integer in 0\.\.2\*\*63 - 1"),
    "n": ([1, 100], [0, -1, 1.0, True, None], "an integer >= 1"),
    "stop": (
        ["a", (), ["a", "\N{ROCKET}"], ("a",)],
        ["", [""], ("a", ""), [1], 5, None, ["a", "\ud83d"], {"a"}, b"a"],
        "a non-empty str of Unicode or a sequence of them",
    ),
    "stop_token_ids": ([(), (1, 2), [3]], [5, (1.0,), (True,), "ab", ("a",), None], "a tuple of integers"),
    "ignore_eos": ([True, False], [1, 0, None, "no"], "True or False"),
    "logprobs": ([None, 0, 20], [-1, 1.0, True], "None or an integer >= 0"),
    "logit_bias": (
        [None, {}, {3: 1.5, 4: -100}, {3: 100}, MappingProxyType({1: 2})],
        [{3: 100.5}, {3: -101}, {3: NAN}, {3: -INF}, {3: "1"}, {3: True}, {"3": 1}, {True: 1}, [(3, 1.0)], 5],
        r"None or numbers in -100\.\.100 by token id",
    ),
    "cache_salt": ([None, "a", "\N{ROCKET}"], ["", 5, b"a", "\udc00"], "None or a non-empty str of Unicode"),
}


def test_every_field_has_its_rule():
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert fields == {*RULES, "max_tokens"}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (good, _, _) in RULES.items() for value in good])
def test_what_is_allowed_is_kept(name, value):
    kept = getattr(SamplingParams(**{name: value}), name)
    if name == "stop":
        assert kept == ((value,) if isinstance(value, str) else tuple(value))
    elif name == "stop_token_ids":
        assert kept == tuple(value)
    else:
        assert kept == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, bad, _) in RULES.items() for value in bad])
def test_what_is_refused_is_named(name, value):
    with pytest.raises(ValueError, match=rf"^expected {name} to be {RULES[name][2]}, got ") as error:
        SamplingParams(**{name: value})
    assert str(error.value).endswith(f"got {value!r}")


def test_the_defaults_are_greedy_and_change_nothing():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0, 0, 1, 0)
    assert not params.changes_logits
    assert not params.needs_history


@pytest.mark.parametrize(
    ("wish", "changes", "looks_back"),
    [
        ({"min_tokens": 1}, True, True),
        ({"repetition_penalty": 1.1}, True, True),
        ({"presence_penalty": 0.1}, True, True),
        ({"frequency_penalty": -0.1}, True, True),
        ({"logit_bias": {1: 1.0}}, True, False),
        ({"logit_bias": {}}, False, False),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.5, "stop": "a", "n": 2}, False, False),
    ],
)
def test_what_changes_the_logits_and_what_needs_the_tokens_so_far(wish, changes, looks_back):
    params = SamplingParams(**wish)
    assert (params.changes_logits, params.needs_history) == (changes, looks_back)


def test_what_the_caller_changes_later_does_not_count():
    stops, texts, bias = [3, 4], ["a"], {5: 1.0}
    params = SamplingParams(stop_token_ids=stops, stop=texts, logit_bias=bias)
    stops.append(5)
    texts.append("b")
    bias[5] = 99.0
    assert (params.stop_token_ids, params.stop, params.logit_bias) == ((3, 4), ("a",), {5: 1.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0


def test_params_are_copied_compared_and_hashed():
    params = SamplingParams(temperature=0.5, stop="a", logit_bias={1: 2.0})
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == dataclasses.replace(params) == params
    assert dataclasses.replace(params, logit_bias=None) != params
    assert {params: 1}[SamplingParams(temperature=0.5, stop=("a",), logit_bias={1: 2.0})] == 1
