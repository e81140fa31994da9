"""Taking turns, and prompts of an exact length."""

from benchmarks.bench import interleave, prompts, ratios


def test_every_sampler_has_a_turn_in_each_round_and_another_one_begins():
    order = []
    samplers = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    samples = interleave(samplers, 3)
    assert order == list("abcbcacab")
    assert samples == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_progress_names_the_sampler_and_the_round():
    told = []
    interleave({"a": lambda: 1.0}, 2, told.append)
    assert told == ["a, round 1 of 2", "a, round 2 of 2"]


def test_prompts_have_exactly_this_length_and_begin_differently(toy_model):
    texts = prompts(toy_model, 20, 300)
    assert {len(text) for text in texts} == {300}
    assert len({tuple(text[:16]) for text in texts}) == 20
    assert texts == prompts(toy_model, 20, 300)


def test_a_prompt_may_be_longer_than_the_text(toy_model):
    (text,) = prompts(toy_model, 1, 30_000)
    assert len(text) == 30_000


def test_ratios_go_round_by_round():
    assert ratios([4, 9], [2, 3]) == [2, 3]
