"""N-gram lookup against a search by brute force, and by hand."""

import random

import pytest
import torch

from servelab.sampling import SamplingParams
from servelab.speculative import DraftRow, NGram
from servelab.speculative.ngram import NGramProposer


def row(tokens: list[int], max_drafts: int = 4, request_id: str = "a") -> DraftRow:
    return DraftRow(request_id, tokens, len(tokens), max_drafts, [], SamplingParams(), torch.Generator())


def draft(tokens: list[int], max_drafts: int = 4, **options: int) -> list[int]:
    proposer = NGramProposer(NGram(**options), token_cost=0.0)
    proposer.begin("a", 0)
    (drafted,) = proposer.propose([row(tokens, max_drafts)])
    assert drafted.probs is None
    return drafted.token_ids


def brute_force(tokens: list[int], longest: int, shortest: int, length: int) -> list[int]:
    """The definition: the longest run of last tokens that stood before, its most recent place, what followed there."""
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                text = list(tokens)
                for place in range(length):
                    text.append(text[start + n + place])
                return text[len(tokens) :]
    return []


def test_what_followed_the_last_tokens_before() -> None:
    assert draft([7, 1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]


def test_the_longest_run_wins_over_a_more_recent_shorter_one() -> None:
    assert draft([1, 2, 3, 4, 8, 3, 5, 1, 2, 3], max_drafts=1) == [4]


def test_the_most_recent_of_equals_wins() -> None:
    assert draft([1, 2, 5, 1, 2, 6, 1, 2], max_drafts=1) == [6]


def test_a_period_goes_on_past_the_end_of_the_text() -> None:
    assert draft([9, 4, 5, 4, 5], max_drafts=4) == [4, 5, 4, 5]
    assert draft([3, 3], max_drafts=3) == [3, 3, 3]


def test_nothing_is_drafted_where_nothing_repeats() -> None:
    assert draft([1, 2, 3, 4]) == []
    assert draft([1]) == []


def test_shorter_runs_than_min_ngram_are_not_looked_up() -> None:
    text = [1, 2, 3, 9, 3]
    assert draft(text, max_drafts=1) == [9]
    assert draft(text, max_drafts=1, min_ngram=2) == []


def test_no_more_than_the_row_allows() -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    assert draft(text, max_drafts=0) == []
    assert draft(text, max_drafts=9, k=2) == [3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_the_index_that_grows_finds_what_a_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    longest, shortest = draw.choice([(1, 1), (3, 1), (3, 2), (5, 3)])
    proposer = NGramProposer(NGram(k=5, max_ngram=longest, min_ngram=shortest), token_cost=0.0)
    proposer.begin("a", 0)
    tokens = [draw.randrange(4) for _ in range(draw.randrange(1, 12))]
    for _ in range(60):
        (drafted,) = proposer.propose([row(list(tokens), 5)])
        assert drafted.token_ids == brute_force(tokens, longest, shortest, 5)
        tokens += [draw.randrange(4) for _ in range(draw.randrange(1, 4))]


def test_a_child_starts_with_its_parents_text_and_goes_its_own_way() -> None:
    proposer = NGramProposer(NGram(), token_cost=0.0)
    proposer.propose([row([1, 2, 3, 1, 2], 1, "parent")])
    proposer.fork("parent", "child")
    child, parent = proposer.propose(
        [row([1, 2, 3, 1, 2, 9, 1, 2, 9, 9, 1, 2], 1, "child"), row([1, 2, 3, 1, 2, 8, 1, 2], 1, "parent")]
    )
    assert (parent.token_ids, child.token_ids) == ([8], [9])


class Counted(list):
    """Tokens that count how often they are looked at."""

    looks = 0

    def __getitem__(self, place):
        self.looks += 1
        return super().__getitem__(place)


def test_a_long_text_is_read_once() -> None:
    """A new token costs a look at the runs that end with it, whatever stands before."""
    proposer = NGramProposer(NGram(), token_cost=0.0)
    tokens = Counted(range(2000))
    proposer.propose([row(tokens)])
    tokens.looks = 0
    for token in range(10):
        tokens.append(5000 + token)
        proposer.propose([row(tokens)])
    assert tokens.looks <= 10 * 2 * 3


def test_a_forgotten_request_leaves_nothing_to_the_next_of_its_name() -> None:
    proposer = NGramProposer(NGram(), token_cost=0.0)
    proposer.propose([row([1, 2, 3, 4])])
    proposer.forget("a")
    proposer.forget("a")
    assert proposer.propose([row([5, 1])])[0].token_ids == []


def test_it_keeps_no_kv() -> None:
    proposer = NGramProposer(NGram(), token_cost=0.0)
    proposer.attach(10, 16)
    proposer.begin("a", 0)
    proposer.copy_blocks([(1, 2)])
    assert proposer.bytes_per_block(16) == 0
    assert proposer.num_computed("a") > 10**6
    assert proposer.k == 4
