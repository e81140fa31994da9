"""Prompts are many, different, and the same for the same seed."""

import itertools
from collections import Counter

from servelab.training.prompt import KINDS, PASSAGES, PromptWriter, paragraphs


def take(number, seed=0):
    return list(itertools.islice(PromptWriter(seed), number))


def test_no_prompt_comes_twice():
    prompts = take(3000)
    assert len(set(prompts)) == 3000


def test_the_seed_decides():
    assert take(50, seed=3) == take(50, seed=3)
    assert take(50, seed=3) != take(50, seed=4)


def test_every_place_is_filled_and_nothing_is_left_over():
    for prompt in take(3000):
        assert "{" not in prompt
        assert "}" not in prompt
        assert prompt == prompt.strip()
        assert "  " not in prompt


def test_every_kind_has_its_share():
    writer, drawn = PromptWriter(0), Counter()
    forms = {form: kind for kind, forms in writer.forms.items() for form in forms}
    fill = writer.fill
    writer.fill = lambda form: drawn.update([forms[form.split("\n\n")[0]]]) or fill(form)
    list(itertools.islice(writer, 4000))
    total = sum(drawn.values())
    for kind, weight in KINDS.items():
        assert abs(drawn[kind] / total - weight / sum(KINDS.values())) < 0.04, kind


def test_a_follow_up_stands_on_its_own():
    writer = PromptWriter(0)
    asked = {writer.follow_up() for _ in range(200)}
    assert len(asked) > 15
    assert not any("{" in question for question in asked)


def test_passages_are_whole_paragraphs():
    passages = paragraphs(PASSAGES)
    assert len(passages) == 10
    assert all(passage.endswith(".") and "\n" not in passage for passage in passages)
