"""From a configuration to a proposer, or to the reason why there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from servelab.model import Model, random_model
from servelab.speculative import DraftHead, DraftModel, NGram, make_proposer
from servelab.speculative.draft_head import DraftHeadProposer
from servelab.speculative.draft_model import DraftModelProposer
from servelab.speculative.ngram import NGramProposer


def test_each_kind(target: Model, near_model: Model, head_path: Path) -> None:
    kinds = {NGram(k=3): NGramProposer, DraftHead(head_path, k=3): DraftHeadProposer}
    for config, kind in [*kinds.items(), (DraftModel(near_model, k=3), DraftModelProposer)]:
        proposer = make_proposer(config, target)
        assert type(proposer) is kind
        assert proposer.k == 3


def test_a_path_may_be_text(target: Model, head_path: Path) -> None:
    assert make_proposer(DraftHead(str(head_path)), target).k == 4


def test_another_kind_is_refused(target: Model) -> None:
    with pytest.raises(ValueError, match=r"expected NGram\(...\), DraftModel\(...\) or DraftHead\(...\), got 'ngram'"):
        make_proposer("ngram", target)


def test_a_draft_model_of_another_vocabulary_is_refused(target: Model) -> None:
    other = random_model(replace(target.config, vocab_size=300))
    with pytest.raises(ValueError, match=r"vocabulary of random-llama \(257 tokens\), got random-llama with 300"):
        make_proposer(DraftModel(other), target)


def test_a_draft_model_on_another_device_is_refused(target: Model) -> None:
    other = random_model(target.config)
    other.network.to("meta")
    with pytest.raises(ValueError, match="expected the draft model on cpu, got it on meta"):
        make_proposer(DraftModel(other), target)


def test_a_head_of_another_model_is_refused(target: Model, head_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a draft head trained on the weights of"):
        make_proposer(DraftHead(head_path), random_model(target.config, seed=77))


def test_a_verified_token_costs_less_on_a_gpu(target: Model) -> None:
    class Elsewhere:
        device = torch.device("cuda")

    on_cpu, on_gpu = make_proposer(NGram(), target), make_proposer(NGram(), Elsewhere())
    assert 0 < on_gpu.lengths.token_cost < on_cpu.lengths.token_cost
