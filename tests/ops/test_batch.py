import pytest

from servelab.ops import AttentionBatch

GOOD = {
    "query_lengths": [2, 1],
    "context_lengths": [2, 5],
    "slot_mapping": [0, 1, 12],
    "block_tables": [[0], [2, 3]],
    "block_size": 4,
}


def test_counts_its_query_tokens():
    assert AttentionBatch(**GOOD).num_tokens == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_lengths": [], "context_lengths": [], "slot_mapping": []}, "at least one sequence"),
        ({"context_lengths": [2]}, "got 2 query lengths and 1 context lengths"),
        ({"query_lengths": [3, 0]}, "1 <= query length <= context length, got 3 queries in a context of 2"),
        ({"query_lengths": [0, 3]}, "got 0 queries in a context of 2"),
        ({"slot_mapping": [0, 1]}, "each of the 3 query tokens, got 2"),
        ({"starts": [0, 8]}, "either block_tables or starts, got both"),
        ({"block_tables": None}, "either block_tables or starts, got neither"),
        ({"block_tables": [[0]]}, "2 block tables, one a sequence, got 1"),
        ({"block_tables": [[0], [2]]}, "covers 5 tokens, got 1 blocks of 4 slots"),
        ({"block_tables": None, "starts": [0]}, "2 starts, one a sequence, got 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        AttentionBatch(**{**GOOD, **change})
