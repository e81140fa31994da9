"""Prefix caching in the engine: what is found is not computed again, and changes no token."""

import pytest

from servelab.sampling import SamplingParams
from servelab.trace import Cache, Evict, Hit, Preempt, Schedule

PROMPT = [position * 7 % 50 + 1 for position in range(40)]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def events(engine, kind):
    return [event for step in engine.trace.steps for event in step.events if isinstance(event, kind)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 12])
def test_a_prompt_that_came_before_still_computes_its_last_token(make_engine, drain, greedy, length):
    """Exactly 2 x block_size, and its neighbours: at least one token is computed, or there would be no logits to
    choose from [nano-vllm#144, vllm#11186]."""
    engine = make_engine()
    for name in ("first", "second"):
        engine.add_request(PROMPT[:length], until(5), name)
        output = drain(engine)[name]
        assert output.token_ids == greedy(PROMPT[:length], 5)
        cached = 0 if name == "first" else (length - 1) // 4 * 4
        assert output.metrics.num_cached_tokens == cached
        computed = [event.rows[0][1] for event in events(engine, Schedule)][-5]
        assert computed == length - cached >= 1


def test_requests_of_one_step_do_not_find_each_other_but_later_ones_do(make_engine, drain, greedy):
    """A block can be found once its tokens are computed, and not before."""
    engine = make_engine()
    for name in "AB":
        engine.add_request(PROMPT[:12], until(3), name)
    engine.step()
    engine.add_request(PROMPT[:12], until(3), "C")
    outputs = drain(engine)
    assert [outputs[name].metrics.num_cached_tokens for name in "ABC"] == [0, 0, 8]
    assert {tuple(output.token_ids) for output in outputs.values()} == {tuple(greedy(PROMPT[:12], 3))}


def test_output_tokens_are_found_as_part_of_a_longer_prompt(make_engine, drain, greedy):
    """The next turn of a conversation begins with the last one's prompt and answer."""
    engine = make_engine()
    engine.add_request(PROMPT[:6], until(8), "A")
    first = drain(engine)["A"]
    turn = PROMPT[:6] + first.token_ids + PROMPT[:3]
    engine.add_request(turn, until(4), "B")
    second = drain(engine)["B"]
    # 6 + 8 tokens, the last of them never computed: 13 = 3 full blocks of 4 and one token.
    assert second.metrics.num_cached_tokens == 12
    assert second.token_ids == greedy(turn, 4)


def test_the_cache_can_be_switched_off(make_engine, drain, greedy):
    engine = make_engine(prefix_caching=False)
    for name in "AB":
        engine.add_request(PROMPT[:12], until(3), name)
        assert drain(engine)[name].metrics.num_cached_tokens == 0
    assert events(engine, Hit) == events(engine, Cache) == []


def test_other_tenants_do_not_find_each_others_blocks(make_engine, drain, greedy):
    engine = make_engine()
    cached = {}
    for name, salt in (("A", None), ("B", "one"), ("C", "two"), ("D", "one"), ("E", None)):
        engine.add_request(PROMPT[:12], until(2, cache_salt=salt), name)
        output = drain(engine)[name]
        assert output.token_ids == greedy(PROMPT[:12], 2)
        cached[name] = output.metrics.num_cached_tokens
    assert cached == {"A": 0, "B": 0, "C": 0, "D": 8, "E": 8}


@pytest.mark.parametrize("num_blocks", [6, 7, 8])
def test_a_preempted_request_finds_its_own_blocks_again(make_engine, drain, greedy, num_blocks):
    """Cached and scheduled tokens together never exceed the request's tokens [nano-vllm#211]."""
    engine = make_engine(num_blocks=num_blocks)
    names = [engine.add_request([first, *PROMPT[:6]], until(12), f"{first}") for first in (60, 61, 62)]
    outputs = drain(engine)
    assert len(events(engine, Preempt)) >= 1
    assert len(events(engine, Hit)) >= 1
    for state in engine.trace.states("scheduled"):
        for request in state.requests:
            assert request.num_computed_tokens + request.num_scheduled_tokens <= request.num_tokens
    for first, name in zip((60, 61, 62), names, strict=True):
        assert outputs[name].token_ids == greedy([first, *PROMPT[:6]], 12)


@pytest.mark.parametrize("at_tokens", [4, 5, 6, 8, 9])
def test_a_preemption_with_all_its_blocks_still_cached_changes_no_token(make_engine, drain, greedy, at_tokens):
    """By hand at a full block, one before and one after [nano-vllm#211, nano-vllm#217]."""
    engine = make_engine()
    engine.add_request(PROMPT[:3], until(12), "A")
    while engine._requests["A"].num_tokens < at_tokens:
        engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    assert drain(engine)["A"].token_ids == greedy(PROMPT[:3], 12)
    hits = len(events(engine, Hit))
    assert hits == (at_tokens - 1) // 4


def test_a_block_that_is_handed_out_again_is_found_no_more(make_engine, drain, greedy):
    """B fills the pool and so overwrites A's blocks; A comes again and must not find B's keys [MinivLLM#87]."""
    engine = make_engine(num_blocks=5)
    for name, prompt in (("A", PROMPT[:9]), ("B", PROMPT[20:37]), ("A again", PROMPT[:9])):
        engine.add_request(prompt, until(3), name)
        output = drain(engine)[name]
        assert output.token_ids == greedy(prompt, 3)
        assert output.metrics.num_cached_tokens == 0
    assert {event.block for event in events(engine, Evict)} >= {0, 1}


def test_the_blocks_used_least_recently_are_evicted_first(make_engine, drain):
    engine = make_engine(num_blocks=6)
    for name, prompt in (("A", PROMPT[:5]), ("B", PROMPT[10:15]), ("A again", PROMPT[:5]), ("C", PROMPT[20:33])):
        engine.add_request(prompt, until(1), name)
        drain(engine)
    # C took 4 blocks: one never used, two that were not full, and B's, which had been free for longer than A's.
    cached = {}
    for name, prompt in (("A", PROMPT[:5]), ("B", PROMPT[10:15])):
        engine.add_request(prompt, until(1), name)
        cached[name] = drain(engine)[name].metrics.num_cached_tokens
    assert cached == {"A": 4, "B": 0}


def test_a_hash_that_always_collides_changes_nothing(make_engine, drain, greedy):
    """Different tokens never share a block [vllm#8229]."""
    engine = make_engine()
    assert callable(engine.cache._prefixes.hash_block)
    engine.cache._prefixes.hash_block = lambda parent, tokens, salt: 7
    prompts = [PROMPT[:9], PROMPT[1:10], PROMPT[:4] + PROMPT[9:14], PROMPT[:9]]
    for number, prompt in enumerate(prompts):
        engine.add_request(prompt, until(4), str(number))
        output = drain(engine)[str(number)]
        assert output.token_ids == greedy(prompt, 4)
        assert output.metrics.num_cached_tokens == [0, 0, 4, 8][number]


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_length_that_the_block_size_divides(make_engine, drain, greedy, block_size):
    """8 tokens in blocks of 4: the second block is full, the slot of token 7 is table[1] * 4 + 3 [MinivLLM#87]."""
    engine = make_engine(block_size=block_size)
    engine.add_request(PROMPT[:8], until(6), "A")
    engine.step()
    table = engine.cache.block_table("A")
    assert (len(table), engine.cache.slot("A", 7)) == (
        8 // block_size,
        table[7 // block_size] * block_size + 7 % block_size,
    )
    assert [(event.index, event.block) for event in events(engine, Cache)] == list(enumerate(table))
    assert drain(engine)["A"].token_ids == greedy(PROMPT[:8], 6)


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 8])
def test_chunks_and_cached_blocks_together(make_engine, drain, greedy, budget):
    engine = make_engine(max_num_batched_tokens=budget, block_size=3)
    for name, length in (("A", 17), ("B", 20), ("C", 12), ("D", 17)):
        engine.add_request(PROMPT[:length], until(4), name)
    outputs = drain(engine)
    assert [outputs[name].token_ids for name in "ABCD"] == [greedy(PROMPT[:n], 4) for n in (17, 20, 12, 17)]
    assert outputs["D"].metrics.num_cached_tokens > 0


def test_a_cached_prefix_lets_a_request_in_that_would_not_fit_without(make_engine, drain):
    """A holds 5 blocks of 6; B needs 5, of which 4 are A's."""
    engine = make_engine(num_blocks=6)
    engine.add_request(PROMPT[:16], until(4), "A")
    engine.step()
    engine.add_request(PROMPT[:17], until(1), "B")
    engine.step()
    state = engine.trace.state_at(1)
    first, second = (request.block_table for request in state.requests)
    assert (first[:4], list(state.free)) == (second[:4], [])
    drain(engine)
