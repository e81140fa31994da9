"""Each section in a tiny form, so that none can rot: what it measures is there, and its targets are held against it."""

import pytest

from benchmarks.report import Result
from benchmarks.section import batching, capacity, memory, overhead, prefix, speculation, step
from benchmarks.section.batching import HELD_AGAINST
from servelab.costs import RequestLength
from servelab.speculative import DraftModel, NGram


def median_of(result: Result, name: str, **case) -> float:
    return result.find(name, **case).median


def test_step(toy_bench):
    result = step.run(toy_bench)
    own = result.find("its linear layers")
    assert len(own.samples) == 4
    assert median_of(result, "decode step") > own.median > 0
    assert result.targets[0].name == "decode step against its linear layers"
    assert result.targets[0].value == pytest.approx(median_of(result, "decode step against its linear layers"))


def test_memory(toy_bench):
    result = memory.run(toy_bench, requests=2, context=20)
    network = toy_bench.model.network
    assert median_of(result, "weights") * 1e6 >= sum(parameter.nbytes for parameter in network.parameters()) / 2
    tokens = 2 * -(-(20 + 32) // 16) * 16
    assert median_of(result, "KV pool") * 1e6 == tokens * toy_bench.model.kv_bytes_per_token
    beside = median_of(result, "beside weights and KV pool")
    assert beside < median_of(result, "peak while serving")
    assert result.targets[0].value == beside > 50  # Python and PyTorch alone


def test_memory_of_a_process_that_fails_is_no_number(toy_bench):
    with pytest.raises(RuntimeError, match=r"failed: .*No module named benchmarks\.missing"):
        memory.run(toy_bench, program="benchmarks.missing")


def test_prefix(toy_bench):
    result = prefix.run(toy_bench, system_tokens=400)
    assert len(result.find("time to first token", prefix_caching="on").samples) == 2
    assert result.targets[0].value == median_of(result, "time to first token, off against on") > 0


def test_overhead(toy_bench):
    result = overhead.run(toy_bench, many=8, few=4, steps=8, context=20)
    assert len(result.find("schedule").samples) == 8
    assert 0 < median_of(result, "outside the model") < median_of(result, "step")
    assert [target.unit for target in result.targets] == ["ms", "ms"]


def test_batching(toy_bench):
    lengths = [RequestLength(5, 40 if number % 16 == 3 else 3) for number in range(48)]
    result = batching.run(toy_bench, {HELD_AGAINST: lengths, "other": lengths[:4]})
    assert median_of(result, "continuous against static", mix=HELD_AGAINST) > 1
    assert len(result.targets) == 1


def test_mixes_are_the_same_everywhere():
    mixes = batching.default_mixes(96)
    assert mixes == batching.default_mixes(96)
    outputs = [length.output_tokens for length in mixes[HELD_AGAINST]]
    assert sum(count >= 384 for count in outputs) == 6
    assert max(count for count in outputs if count < 384) <= 32


def test_capacity(toy_bench):
    lengths = [RequestLength(40 + number % 7, 20) for number in range(30)]
    result = capacity.run(toy_bench, lengths, num_slots=1024)
    for how in ("placed", "served"):
        held = {
            pool: median_of(result, "requests held", kv_cache=pool, requests=how) for pool in ("paged", "contiguous")
        }
        assert held["contiguous"] == 2  # 512 slots are reserved for each
        assert 12 <= held["paged"] <= 20
        assert median_of(result, "waste", kv_cache="contiguous", requests=how) > 80
        assert 0 < median_of(result, "waste", kv_cache="paged", requests=how) < 15


def test_requests_are_placed_whole_until_one_is_refused():
    # 10 blocks of 16: 100 tokens take 7 blocks, 40 take 3; the third, of 20, finds none and begins an empty pool.
    lengths = [RequestLength(60, 40), RequestLength(30, 10), RequestLength(10, 10)]
    pressure = capacity.place("paged", lengths, 160)
    assert pressure.held == [2]
    assert pressure.waste == [pytest.approx(100 * 20 / 160)]


def test_formats_in_the_same_bytes(toy_bench):
    _, targets = capacity.formats(toy_bench)
    # A toy head of 8 numbers has a 2-byte scale: 10 bytes instead of 16.
    assert [round(target.value, 2) for target in targets if "int8" in target.name] == [1.6]


def test_a_pool_under_no_pressure_is_refused(toy_bench):
    for count in (capacity.place, capacity.serve):
        with pytest.raises(ValueError, match="expected more requests than the pool holds"):
            count("paged", [RequestLength(4, 4)], 1024)


def test_speculation(toy_bench):
    makers = {
        "ordinary": {
            "n-gram": lambda model: NGram(k=2),
            "draft model": lambda model: DraftModel(speculation.without_layers(model), k=2),
        }
    }
    result = speculation.run(toy_bench, makers, batch_sizes=(1, 2), output_tokens=6)
    for proposer in makers["ordinary"]:
        for batch_size in (1, 2):
            case = {"proposer": proposer, "batch_size": batch_size}
            assert len(result.find("speed against plain", **case).samples) == 2
            assert median_of(result, "same tokens as plain", **case) == 1
            assert median_of(result, "tokens per target step", **case) >= 1
    assert result.targets == ()


def test_the_targets_of_speculation_are_held_at_one_request(toy_bench, monkeypatch):
    makers = {"ngram_tasks": {"n-gram, adaptive": lambda model: NGram(k=2)}}
    monkeypatch.setattr(speculation, "read_prompts", lambda model, text: [[1, 2, 3, 1, 2]] * 4)
    result = speculation.run(toy_bench, makers, batch_sizes=(1, 2), output_tokens=4)
    assert [target.name for target in result.targets] == ["n-gram, adaptive on ngram_tasks text, 1 request"]


@pytest.mark.parametrize("text", ["ordinary", "ngram_tasks"])
def test_prompts_are_many_and_all_different(toy_bench, text):
    prompts = speculation.read_prompts(toy_bench.model, text)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts) >= 16
