"""Speculation inside a step: the tokens stay, the limits hold, and every proposer is told what it must know."""

import pytest
import torch

from servelab.cache import KVCacheManager
from servelab.model import skip_layers, toy_model
from servelab.sampling import SamplingParams
from servelab.speculative import DraftModel, NGram
from servelab.trace import Draft as DraftEvent
from servelab.trace import Schedule, Trim, Verify, Wait

PROMPT = [10, 20, 30, 40, 50]
SAME = toy_model()  # drafts exactly what the target says
OTHER = toy_model(3)  # drafts something else
CONFIGS = {
    "ngram": NGram(),
    "same": DraftModel(SAME, k=3),
    "other": DraftModel(OTHER),
    "adaptive": NGram(adaptive=True),
}


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def events(engine, kind):
    return [event for step in engine.trace.steps for event in step.events if isinstance(event, kind)]


def rows(engine):
    return [dict(event.rows) for event in events(engine, Schedule)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("config", [{}, {"num_blocks": 9}, {"max_num_batched_tokens": 7}, {"kv_cache": "contiguous"}])
def test_greedy_tokens_are_those_without_speculation(make_engine, drain, greedy, name, config):
    engine = make_engine(speculative=CONFIGS[name], reserve="exact", max_num_seqs=4, **config)
    prompts = [[7] * 9, PROMPT, PROMPT[:1], [1, 2, 3] * 4]
    names = [engine.add_request(prompt, until(15)) for prompt in prompts]
    outputs = drain(engine)
    assert [outputs[each].token_ids for each in names] == [greedy(prompt, 15) for prompt in prompts]
    if name == "same" and not config:
        assert engine.speculation.acceptance_rate == 1.0
        assert len(engine.trace.steps) <= 1 + 14 // 4 + 1


@pytest.mark.parametrize("num_right", [0, 1, 2, 7])
def test_what_is_accepted_is_emitted_in_the_same_step(make_scripted, greedy, num_right):
    engine, _ = make_scripted(num_right)
    engine.add_request(PROMPT, until(30), "A")
    engine.step()
    (output,) = engine.step()
    assert output.delta_token_ids == greedy(PROMPT, 2 + num_right)[1:]
    assert rows(engine)[1] == {0: 9}
    (verify,) = events(engine, Verify)
    assert verify.num_accepted == num_right
    assert verify.p == (1.0,) * num_right + (0.0,) * (8 - num_right)
    request = engine._requests["A"]
    assert request.num_uncomputed_tokens == 1
    assert request.num_tokens == 5 + 2 + num_right


@pytest.mark.parametrize("kv_cache", ["paged", "contiguous"])
@pytest.mark.parametrize(("prompt", "max_tokens"), [(28, 4), (24, 8), (31, 1), (1, 31)])
def test_no_position_beyond_the_limit_is_touched(make_scripted, drain, greedy, kv_cache, prompt, max_tokens):
    """Limit 32, prompt 28, k = 8: exactly 32 tokens, no position >= 32 [gpt-fast#69]."""
    engine, script = make_scripted(max_model_len=32, num_blocks=8, kv_cache=kv_cache)
    touched = []
    hidden = type(engine.model).hidden

    class Watched(type(engine.model)):
        __slots__ = ()

        def hidden(self, token_ids, positions, attention):
            touched.extend(positions)
            return hidden(self, token_ids, positions, attention)

    model = engine.model
    engine.runner.model = Watched(model.name, model.config, model.network, model.tokenizer)
    engine.add_request([5] * prompt, until(max_tokens), "A")
    assert drain(engine)["A"].token_ids == greedy([5] * prompt, max_tokens)
    # The last of the 32 tokens is never computed itself.
    assert max(touched) == 30
    assert all(length + max_drafts < 32 for _, length, max_drafts, _ in script.asked)


def test_drafts_take_what_the_budget_leaves(make_scripted, drain, greedy):
    """Everybody's own token comes first, then prompts, then drafts: the oldest gets most [sglang#32549]."""
    engine, _ = make_scripted(max_num_batched_tokens=12)
    for name in "ABC":
        engine.add_request(PROMPT, until(30), name)
    for _ in range(3):
        engine.step()
    assert rows(engine)[-1] == {0: 9, 1: 2, 2: 1}
    engine.add_request([9] * 30, until(1), "long")
    engine.step()
    assert rows(engine)[-1] == {0: 1, 1: 1, 2: 1, 3: 9}
    drain(engine)
    assert all(sum(row.values()) <= 12 for row in rows(engine))


def test_nobody_is_preempted_for_a_draft(make_scripted, drain, greedy):
    """Two requests in a pool that they fill: there is a slot for each token, and for as many drafts as are left."""
    engine, script = make_scripted(num_blocks=6)
    for name in "AB":
        engine.add_request(PROMPT, until(7), name)
    outputs = drain(engine)
    assert all(output.metrics.num_preemptions == 0 for output in outputs.values())
    assert [outputs[name].token_ids for name in "AB"] == [greedy(PROMPT, 7)] * 2
    assert {max_drafts for _, _, max_drafts, _ in script.asked} - {0, 8}, "some drafts were cut short"
    assert all(length + max_drafts <= blocks * 4 for _, length, max_drafts, blocks in script.asked)


def test_nobody_is_preempted_for_a_draft_that_was_rejected(make_scripted, drain, greedy):
    """A's guesses take the last free blocks, and B needs one in the next step: it is there, as without speculation
    [inference-sim#529]."""
    engine, _ = make_scripted(num_right=0, num_blocks=6)
    engine.add_request(PROMPT, until(11), "A")
    engine.add_request(PROMPT, until(7), "B")
    outputs = drain(engine)
    assert [outputs[name].metrics.num_preemptions for name in "AB"] == [0, 0]
    assert [outputs["A"].token_ids, outputs["B"].token_ids] == [greedy(PROMPT, 11), greedy(PROMPT, 7)]
    assert events(engine, Trim)


def test_nobody_waits_for_memory_that_a_rejected_draft_took(make_scripted, greedy):
    """C comes when A's guesses have filled the pool: it starts in the next step."""
    engine, _ = make_scripted(num_right=0, num_blocks=4)
    engine.add_request(PROMPT, until(9), "A")
    engine.step()
    engine.step()
    engine.add_request([1, 2, 3], until(1), "C")
    assert engine.step()[-1].token_ids == greedy([1, 2, 3], 1)
    assert events(engine, Wait) == []


@pytest.mark.parametrize("num_right", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_between_steps_a_request_holds_blocks_for_its_own_tokens_only(make_scripted, drain, num_right, block_size):
    engine, _ = make_scripted(num_right, block_size=block_size)
    engine.add_request(PROMPT, until(25, n=2), "A")
    drain(engine)
    for state in engine.trace.states("end"):
        for request in state.requests:
            assert len(request.block_table) <= -(-request.num_tokens // block_size)
    assert bool(events(engine, Trim)) == (num_right < 8)


def test_a_proposer_is_told_of_every_request(make_scripted, drain):
    engine, script = make_scripted(num_right=1)
    engine.add_request(PROMPT, until(4, n=2), "A")
    engine.add_request([1, 2, 3], until(3), "B")
    drain(engine)
    engine.add_request(PROMPT, until(2), "C")
    drain(engine)
    assert script.calls[:3] == [("attach", 64, 4), ("begin", "A", 0), ("begin", "B", 0)]
    assert ("fork", "A", "A#1") in script.calls
    assert ("begin", "C", 4) in script.calls
    assert len([call for call in script.calls if call[0] == "copy"]) == 1
    assert sorted(call[1] for call in script.calls if call[0] == "forget") == ["A", "A#1", "B", "C"]
    assert script.computed == {}


def test_blocks_are_found_only_as_far_as_the_proposer_has_them_too(make_scripted, drain):
    engine, script = make_scripted()
    script.num_computed = lambda request_id: 5
    engine.add_request([7] * 14, until(1), "A")
    drain(engine)
    engine.add_request([7] * 14, until(1), "B")
    assert drain(engine)["B"].metrics.num_cached_tokens == 4


def test_a_prompt_is_not_drafted_for(make_scripted, drain):
    """Neither before its last chunk, nor before its answers are forked, nor when its last chunk is one token."""
    engine, script = make_scripted(max_num_batched_tokens=4)
    engine.add_request([7] * 9, until(5, n=2), "A")
    drain(engine)
    assert min(length for _, length, _, _ in script.asked) == 10


def test_metrics_count_drafted_accepted_and_emitted(make_scripted, drain):
    engine, _ = make_scripted(num_right=2, k=3)
    engine.add_request(PROMPT, until(10), "A")
    output = drain(engine)["A"]
    # 1 token from the prompt, then 3 + 3 + 3: the last step emits 3 and has no room for more drafts than 2.
    assert engine.speculation == output.metrics.speculation
    metrics = engine.speculation
    assert (metrics.steps, metrics.emitted) == (3, 9)
    assert (metrics.drafted_at, metrics.accepted_at) == ([3, 3, 2], [3, 3])
    assert metrics.tokens_per_step == 3


def test_without_speculation_nothing_is_counted(make_engine):
    engine = make_engine()
    (output,) = engine.generate([PROMPT], until(4))
    assert (engine.speculation.steps, output.metrics.speculation.steps) == (0, 0)
    assert events(engine, DraftEvent) == events(engine, Verify) == []


def test_sampled_drafts_are_recorded_with_their_numbers(make_engine, drain):
    """Token i is accepted when those before it are and u < p / q."""
    engine = make_engine(speculative=DraftModel(OTHER, k=3))
    for seed in range(6):
        engine.add_request(PROMPT, until(12, temperature=1.5, seed=seed))
    drain(engine)
    drafts, verifies = events(engine, DraftEvent), events(engine, Verify)
    assert [draft.token_ids for draft in drafts] == [verify.token_ids for verify in verifies]
    accepted = 0
    for draft, verify in zip(drafts, verifies, strict=True):
        stands = [u < p / q for p, q, u in zip(verify.p, draft.q, verify.u, strict=True)]
        first_rejected = stands.index(False) if False in stands else len(stands)
        assert verify.num_accepted <= first_rejected
        accepted += verify.num_accepted
    assert 0 < accepted < sum(len(draft.token_ids) for draft in drafts)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupted_step_is_repeated_with_the_same_drafts(make_engine, drain, greedy, monkeypatch, name, where):
    """A draft is made once a token: whoever was stopped between draft and verification goes on with it."""
    engine = make_engine(speculative=CONFIGS[name], max_num_seqs=3)
    prompts = [[7] * 6, PROMPT, [1, 2, 3] * 3]
    names = [engine.add_request(prompt, until(14)) for prompt in prompts]
    original, calls = engine.runner.run, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) % 2 and where == "before":
            raise KeyboardInterrupt
        forward = original(*arguments)
        if len(calls) % 2:
            raise KeyboardInterrupt
        return forward

    monkeypatch.setattr(engine.runner, "run", interrupted)
    outputs = {}
    while engine.has_unfinished():
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except KeyboardInterrupt:
            engine.cache.check_integrity()
    assert [outputs[each].token_ids for each in names] == [greedy(prompt, 14) for prompt in prompts]
    drafted = [(len(first[0]), first[1]) for first in calls[::2]]
    assert drafted == [(len(second[0]), second[1]) for second in calls[1::2]]


@pytest.mark.parametrize("name", ["propose", "observe"])
def test_a_failing_proposer_ends_the_requests_of_its_step(make_scripted, monkeypatch, assert_empty, name):
    engine, script = make_scripted()
    engine.add_request(PROMPT, until(9), "A")
    engine.step()

    def fail(rows):
        raise RuntimeError("no idea")

    monkeypatch.setattr(script, name, fail)
    with pytest.raises(RuntimeError, match="no idea"):
        engine.step()
    assert [(output.finish_reason, len(output.token_ids)) for output in engine.step()] == [("error", 1)]
    assert_empty(engine)


def test_the_drafts_memory_counts_as_the_pools(make_engine, toy_model):
    """Half of the bytes are the draft's own keys and values: half as many blocks."""
    block_bytes = 4 * toy_model.kv_bytes_per_token
    plain = make_engine(kv_cache_bytes=20 * block_bytes)
    drafting = make_engine(kv_cache_bytes=20 * block_bytes, speculative=DraftModel(SAME))
    half = make_engine(kv_cache_bytes=21 * block_bytes, speculative=DraftModel(skip_layers(toy_model, [0])))
    sizes = [engine.cache.pool.num_blocks for engine in (plain, drafting, half)]
    assert sizes == [20, 10, 14]
    assert isinstance(plain.cache, KVCacheManager)
    storage = drafting.speculator.proposer.cache.storage
    assert (storage.num_blocks, storage.block_size) == (10, 4)


def test_penalties_see_the_drafts_before_them(make_engine, drain):
    """The same tokens with and without speculation, where each token depends on how often it came."""
    params = until(20, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.7, logit_bias={30: 4.0})
    expected = make_engine().generate([PROMPT, [7] * 5], params)
    for config in (DraftModel(SAME), NGram(min_ngram=1)):
        outputs = make_engine(speculative=config).generate([PROMPT, [7] * 5], params)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert len(set(expected[0].token_ids)) > 12


def test_a_draft_is_cut_with_its_probabilities(make_scripted, drain, monkeypatch):
    """A step that was interrupted is repeated with less budget: the first tokens of the draft are a draft too."""
    engine, script = make_scripted(max_num_batched_tokens=12)
    script.probs = torch.full((8, 257), 1 / 257)
    engine.add_request(PROMPT, until(12, temperature=1.0, seed=1), "A")
    engine.step()
    original = engine.runner.run
    monkeypatch.setattr(engine.runner, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    monkeypatch.setattr(engine.runner, "run", original)
    engine.add_request([9] * 8, until(2), "B")
    engine.step()
    assert rows(engine)[-1] == {0: 4, 1: 8}
    assert len(drain(engine)["A"].token_ids) == 12
