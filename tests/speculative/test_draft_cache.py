"""Slots, positions and last rows of the spans of a step."""

import torch

from servelab.model import Model
from servelab.speculative.draft_cache import DraftCache, Span, last_rows, positions, slots

SPANS = [Span([5, 2, 7], 3, 6), Span([1], 0, 1), Span([4, 0], 2, 4)]


def test_where_the_tokens_of_a_span_go() -> None:
    assert slots(SPANS[0], block_size=4) == [5 * 4 + 3, 2 * 4, 2 * 4 + 1]
    assert slots(Span([9, 8, 3], 1, 3), block_size=1) == [8, 3]


def test_positions_and_last_rows_of_packed_spans() -> None:
    assert positions(SPANS) == [3, 4, 5, 0, 2, 3]
    assert last_rows(SPANS) == [2, 3, 5]


def test_blocks_are_copied_in_every_layer(target: Model) -> None:
    cache = DraftCache(target.config, torch.float32, torch.device("cpu"))
    cache.attach(6, 2)
    for layer in range(target.config.num_layers):
        cache.storage.keys(layer)[1] = layer + 1.0
        cache.storage.values(layer)[1] = -layer - 1.0
    cache.copy_blocks([(1, 4)])
    for layer in range(target.config.num_layers):
        assert bool((cache.storage.keys(layer)[4] == layer + 1.0).all())
        assert bool((cache.storage.values(layer)[4] == -layer - 1.0).all())
        assert not cache.storage.keys(layer)[5].any()
