"""KV against weights, over the tokens stored."""

import pytest

from servelab.costs import MODEL_SPECS, weight_bytes
from servelab.figures import kv_growth


def test_the_dot_lies_where_kv_equals_the_weights():
    spec = MODEL_SPECS["SmolLM2-135M"]
    line, dot = kv_growth([spec]).data
    assert dot.x[0] == 11_676
    assert dot.y[0] == weight_bytes(spec)
    assert line.y[-1] == pytest.approx(23_040 * 1_000_000)


def test_a_crossover_beyond_the_picture_has_no_dot():
    assert len(kv_growth([MODEL_SPECS["DeepSeek-V3"]], max_tokens=100_000).data) == 1
    with pytest.raises(ValueError, match="at least one model"):
        kv_growth([])
