"""What a configuration refuses."""

from pathlib import Path

import pytest

from servelab.model import Model
from servelab.speculative import DraftHead, DraftModel, NGram


def test_defaults(target: Model) -> None:
    assert (NGram().k, NGram().max_ngram, NGram().min_ngram, NGram().adaptive) == (4, 3, 1, False)
    assert (DraftHead().path, DraftHead().k) == (None, 4)
    assert DraftModel(target).k == 4
    assert DraftHead(Path("x")) == DraftHead(Path("x"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: NGram(k=0), "expected k to be an integer >= 1, got 0"),
        (lambda model: NGram(k=True), "expected k to be an integer >= 1, got True"),
        (lambda model: NGram(min_ngram=0), "expected min_ngram to be an integer >= 1, got 0"),
        (lambda model: NGram(max_ngram=1.5), "expected max_ngram to be an integer >= 1, got 1.5"),
        (lambda model: NGram(max_ngram=2, min_ngram=3), "expected min_ngram <= max_ngram, got 3 and 2"),
        (lambda model: NGram(adaptive=1), "expected adaptive to be True or False, got 1"),
        (lambda model: DraftModel("smollm2"), "expected model as a Model that drafts, got 'smollm2'"),
        (lambda model: DraftModel(model, k=-1), "expected k to be an integer >= 1, got -1"),
        (lambda model: DraftModel(model, adaptive=None), "expected adaptive to be True or False, got None"),
        (lambda model: DraftHead(7), "expected path to a draft head, or None, got 7"),
        (lambda model: DraftHead(k="4"), "expected k to be an integer >= 1, got '4'"),
        (lambda model: DraftHead(adaptive="no"), "expected adaptive to be True or False, got 'no'"),
    ],
)
def test_bad_values_are_named(target: Model, make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(target)
