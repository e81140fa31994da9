"""`SamplingParams`: what is refused, and with which words."""

import pytest

from servelab.sampling import SamplingParams


@pytest.mark.parametrize("max_tokens", [0, -1, 1.0, True, "5", None])
def test_max_tokens_is_a_whole_number_of_at_least_one(max_tokens):
    """`max_tokens=0` asks for nothing: refused, not answered with one token [vllm#6521]."""
    with pytest.raises(ValueError, match=r"expected max_tokens to be an integer >= 1, got"):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), "1", True, None])
def test_temperature_is_finite_and_not_negative(temperature):
    with pytest.raises(ValueError, match="expected temperature to be a finite number >= 0, got"):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True])
def test_seed_is_none_or_a_64_bit_integer(seed):
    with pytest.raises(ValueError, match="expected seed to be None or an integer"):
        SamplingParams(seed=seed)


@pytest.mark.parametrize("stop_token_ids", [5, (1.0,), (True,), "ab", ("a",)])
def test_stop_token_ids_are_integers(stop_token_ids):
    with pytest.raises(ValueError, match="expected stop_token_ids to be a tuple of integers, got"):
        SamplingParams(stop_token_ids=stop_token_ids)


def test_ignore_eos_is_a_truth_value():
    with pytest.raises(ValueError, match="expected ignore_eos to be True or False, got 1"):
        SamplingParams(ignore_eos=1)


def test_a_list_of_stop_tokens_becomes_a_tuple_that_nobody_can_change():
    stops = [3, 4]
    params = SamplingParams(stop_token_ids=stops)
    stops.append(5)
    assert params.stop_token_ids == (3, 4)


def test_whole_temperatures_and_zero_are_fine():
    assert SamplingParams(temperature=0).temperature == 0
    assert SamplingParams(temperature=1).temperature == 1


def test_a_temperature_that_no_float_holds_is_refused():
    with pytest.raises(ValueError, match="expected temperature to be a finite number >= 0, got 1000"):
        SamplingParams(temperature=10**400)
