"""`run_load`: what it asks a server before a load, what it watches meanwhile, and what it reports."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand_in_server import TEXT, answering, listing

from servelab.serving import measure
from servelab.serving.guidellm import LoadFailed
from servelab.serving.load import Load
from servelab.serving.measure import find_tokenizer, run_load
from servelab.serving.target import Card, TargetFailed

RECORDED = json.loads((Path(__file__).parent / "recorded" / "concurrent.json").read_text())
SERVER = {"/v1/models": listing("toy"), "/v1/completions": (200, {}), "/metrics": (200, TEXT)}


@pytest.fixture
def words(tmp_path):
    """A folder with a tokenizer."""
    (tmp_path / "tokenizer.json").write_text("{}")
    return str(tmp_path)


@pytest.fixture
def guidellm(monkeypatch):
    """GuideLLM that only notes what it is told, and leaves the recorded report."""
    told = []

    def run_scenario(scenario, progress, **options):
        told.append((scenario, options))
        return RECORDED

    monkeypatch.setattr(measure, "run_scenario", run_scenario)
    return told


def test_the_server_is_asked_loaded_and_watched(guidellm, words):
    with answering(SERVER) as (url, heard):
        report = run_load(url + "/v1", Load(seed=3), tokenizer=words, progress=False)
    ((scenario, options),) = guidellm
    assert scenario["spec"]["backend"]["model"] == "toy"
    assert scenario["spec"]["tokenizer"]["model"] == words
    assert options["offline"] is True
    paths = [path for _, path, *_ in heard]
    assert paths[:3] == ["/v1/models", "/v1/completions", "/metrics"]
    assert (report.url, report.model, report.seed, len(report.points)) == (url, "toy", 3, 2)
    assert report.prompt == "64 tokens"
    assert report.samples == [] or report.samples[0].running == 7


def test_a_server_without_metrics_is_loaded_all_the_same(guidellm, words):
    with answering(SERVER | {"/metrics": (404, "")}) as (url, _):
        report = run_load(url, Load(), tokenizer=words, progress=False)
    assert report.samples == []
    assert len(report.points) == 2


def test_other_addresses_are_watched_where_they_are_named(guidellm, words):
    with answering(SERVER) as (url, heard), answering({"/metrics": (200, TEXT)}) as (replica, watched):
        run_load(url, Load(), tokenizer=words, metrics_urls=[replica], progress=False)
    assert "/metrics" not in [path for _, path, *_ in heard]
    assert {path for _, path, *_ in watched} == {"/metrics"}
    with answering(SERVER) as (url, _), answering({}) as (empty, _), pytest.raises(LoadFailed, match="answers 404"):
        run_load(url, Load(), tokenizer=words, metrics_urls=[empty], progress=False)


def test_a_refusal_is_told_before_the_load(guidellm, words):
    pages = SERVER | {"/v1/completions": (400, {"error": {"message": "the model is asleep"}})}
    with answering(pages) as (url, _), pytest.raises(TargetFailed, match="answers 400: the model is asleep"):
        run_load(url, Load(), tokenizer=words, progress=False)
    assert guidellm == []


def test_a_model_that_is_not_there_is_told_with_those_that_are(guidellm, words):
    with answering(SERVER) as (url, _), pytest.raises(TargetFailed, match=r"\(toy\), got 'tony'"):
        run_load(url, Load(), model="tony", tokenizer=words, progress=False)


def test_a_tokenizer_comes_from_where_it_is_known(words, tmp_path, monkeypatch):
    assert find_tokenizer(words, Card("toy")) == words
    assert find_tokenizer(None, Card("toy", words)) == words
    assert find_tokenizer(None, Card(words)) == words
    assert find_tokenizer("org/model", Card("toy")) == "org/model"
    monkeypatch.setattr("servelab.model.prepare_model", lambda name: tmp_path / name)
    assert find_tokenizer(None, Card("smollm2-135m")) == str(tmp_path / "smollm2-135m")
    assert find_tokenizer("smollm2-135m", Card("toy")) == str(tmp_path / "smollm2-135m")


def test_a_tokenizer_that_is_not_known_is_asked_for(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"expected --tokenizer as a folder or hub id, because 'gpt' is neither"):
        find_tokenizer(None, Card("gpt", "/models/elsewhere"))
    with pytest.raises(ValueError, match=r"expected a tokenizer.json in .*empty, got a folder without"):
        find_tokenizer(str(tmp_path / "empty"), Card("toy"))
