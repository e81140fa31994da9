"""`Load`: what may be asked for, and the same in GuideLLM's words."""

import pytest

from servelab.serving.load import DEFAULT_SECONDS, Lengths, Load
from servelab.serving.target import Target
from servelab.trace import ServiceLevel

TARGET = Target("http://host:1", "secret")


def spec(**options):
    return Load(**options).scenario(TARGET, "toy", "/models/toy")["spec"]


def test_streams_and_rates_are_levels_in_turn():
    scenario = Load(streams=(1, 4)).scenario(TARGET, "toy", "/models/toy")
    assert scenario["spec"]["profile"] == {"kind": "concurrent"}
    assert scenario["benchmarks"] == [{"profile.streams": 1}, {"profile.streams": 4}]
    for profile in ("poisson", "constant"):
        scenario = Load(profile=profile, rates=(0.5, 2), max_streams=8).scenario(TARGET, "toy", "/models/toy")
        assert scenario["spec"]["profile"] == {"kind": profile, "max_concurrency": 8}
        assert scenario["benchmarks"] == [{"profile.rate": 0.5}, {"profile.rate": 2}]


def test_a_sweep_and_a_search_choose_their_levels_themselves():
    scenario = Load(profile="sweep", num_levels=5, max_streams=64).scenario(TARGET, "toy", "/models/toy")
    assert scenario["spec"]["profile"] == {"kind": "sweep", "sweep_size": 5, "max_concurrency": 64}
    assert "benchmarks" not in scenario
    level = ServiceLevel(ttft_ms=500, tpot_ms=50, latency_ms=4000)
    found = spec(profile="goodput", streams=(2, 9), max_streams=32, service_level=level, target_share=0.9)
    assert found["profile"]["initial_streams"] == 2
    assert found["profile"]["max_streams"] == 32
    assert found["profile"]["target_attainment"] == 0.9
    assert found["metrics"]["slo"] == {"ttft_ms": 500, "tpot_ms": 50, "e2el_ms": 4000}


def test_how_many_levels_there_will_be():
    assert Load(streams=(1, 2, 4)).levels == 3
    assert Load(profile="poisson", rates=(1, 2)).levels == 2
    assert Load(profile="sweep", num_levels=7).levels == 7
    assert Load(profile="goodput", service_level=ServiceLevel(ttft_ms=1)).levels is None


def test_the_server_is_asked_as_given():
    backend = spec()["backend"]
    assert (backend["target"], backend["model"], backend["api_key"]) == ("http://host:1", "toy", "secret")
    assert backend["request_format"] == "/v1/completions"
    assert spec(chat=True)["backend"]["request_format"] == "/v1/chat/completions"
    assert "api_key" not in Load().scenario(Target("http://host"), "toy", "t")["spec"]["backend"]
    assert spec()["tokenizer"] == {"kind": "hf_auto", "model": "/models/toy"}
    assert spec(seed=7)["seed"] == {"kind": "static", "value": 7}


def test_texts_have_lengths_and_may_begin_alike():
    (data,) = spec(prompt=Lengths(64), output=Lengths(32, 40, 1, 256))["data"]
    assert data == {
        "kind": "synthetic_text",
        "prompt_tokens": 64,
        "output_tokens": 32,
        "output_tokens_stdev": 40,
        "output_tokens_min": 1,
        "output_tokens_max": 256,
    }
    (data,) = spec(shared_prefix_tokens=100, num_shared_prefixes=3)["data"]
    assert (data["prefix_tokens"], data["prefix_count"]) == (100, 3)


def test_a_level_ends_by_requests_or_by_time():
    requests, seconds = {"kind": "max_requests", "count": 9}, {"kind": "max_duration", "seconds": 5}
    assert spec(requests=9)["constraints"] == [requests]
    assert spec(seconds=5)["constraints"] == [seconds]
    assert spec(requests=9, seconds=5)["constraints"] == [requests, seconds]
    assert spec()["constraints"] == [{"kind": "max_duration", "seconds": DEFAULT_SECONDS}]


def test_lengths_are_told_in_words():
    assert Lengths(64).describe() == "64 tokens"
    assert Lengths(64, 128, 16, 512).describe() == "64 +- 128 tokens in 16..512"
    assert Lengths(64, 20).describe() == "64 +- 20 tokens in 1..164"


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((0,), "expected mean as a positive number of tokens, got 0"),
        ((1.5,), "expected mean as a positive number of tokens, got 1.5"),
        ((64, -1), "expected stdev as a positive number"),
        ((64, None, 8), "expected shortest and longest only where a stdev is given"),
        ((64, 8, 70), "expected shortest <= mean <= longest, got 70, 64, None"),
        ((64, 8, None, 32), "expected shortest <= mean <= longest, got None, 64, 32"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths, said):
    with pytest.raises(ValueError, match=said):
        Lengths(*lengths)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "storm"}, "expected profile as one of .*, got 'storm'"),
        ({"streams": ()}, r"expected streams as numbers of at least 1, got \[\]"),
        ({"streams": (0,)}, r"expected streams as numbers of at least 1, got \[0\]"),
        ({"profile": "poisson"}, "expected rates, in requests a second, for the profile 'poisson', got none"),
        ({"rates": (0.0,)}, r"expected rates above 0, got \[0.0\]"),
        ({"profile": "goodput"}, "expected a service level for the profile 'goodput', got none"),
        ({"requests": 0}, "expected requests of at least 1, got 0"),
        ({"rates": (float("inf"),)}, r"expected rates above 0, got \[inf\]"),
        ({"seconds": float("inf")}, "expected seconds above 0, got inf"),
        ({"seconds": 0.0}, "expected seconds above 0, got 0.0"),
        ({"max_streams": 0}, "expected max_streams of at least 1"),
        ({"num_levels": 2}, "expected num_levels of at least 3"),
        ({"shared_prefix_tokens": -1}, "expected shared_prefix_tokens of at least 0"),
        ({"num_shared_prefixes": 0}, "expected num_shared_prefixes of at least 1"),
        ({"seed": -1}, "expected seed of at least 0"),
        ({"target_share": 1.0}, "expected target_share between 0 and 1, got 1.0"),
    ],
)
def test_a_load_that_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Load(**options)
