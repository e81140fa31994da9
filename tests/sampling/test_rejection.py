"""`rejection_sample`: what is accepted, what replaces the rest, ragged drafts, and what is refused.

That the output is distributed as the target's is shown in `test_statistics.py`.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.costs import residual
from servelab.sampling import rejection_sample

P, Q = [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]


def run(draft, draft_probs, target_probs, uniforms, num_draft=None):
    """One request or several, from lists; returns lists."""
    tokens, num_accepted = rejection_sample(
        torch.tensor(draft),
        None if draft_probs is None else torch.tensor(draft_probs),
        torch.tensor(target_probs),
        torch.tensor([len(row) for row in draft] if num_draft is None else num_draft),
        torch.tensor(uniforms, dtype=torch.float64),
    )
    return tokens.tolist(), num_accepted.tolist()


def slow(draft, draft_probs, target_probs, uniforms):
    """One request, token by token, as the paper has it."""
    tokens = []
    for token, q, p, u in zip(draft, draft_probs, target_probs, uniforms, strict=False):
        if u >= p[token] / q[token]:
            weights = [max(target - other, 0.0) for target, other in zip(p, q, strict=True)]
            break
        tokens.append(token)
    else:
        weights = target_probs[len(draft)]
    mark, place = uniforms[-1] * math.fsum(weights), 0
    while math.fsum(weights[: place + 1]) <= mark:
        place += 1
    return [*tokens, place], len(tokens)


DISTRIBUTION = st.lists(st.integers(0, 8), min_size=4, max_size=4).filter(any).map(lambda w: [x / sum(w) for x in w])


@st.composite
def requests(draw, k=3):
    """Ragged drafts of 0 .. k tokens over a vocabulary of 4, each drawn from its q, and NaN beyond."""
    n = draw(st.integers(0, k))
    one_hot = [[float(token == other) for other in range(4)] for token in range(4)]
    q = [draw(DISTRIBUTION | st.sampled_from(one_hot)) for _ in range(n)]
    p = [draw(DISTRIBUTION | st.sampled_from([*one_hot, *q])) for _ in range(n + 1)]
    tokens = [draw(st.sampled_from([token for token in range(4) if row[token] > 0])) for row in q]
    # Never where float32 and float64 could differ about the comparison, or about the place of a draw.
    u = [draw(st.sampled_from([0.0137, 0.1373, 0.2711, 0.4177, 0.6173, 0.8191, 0.99371])) for _ in range(n + 1)]
    return tokens, q, p, u


@settings(deadline=None, max_examples=300)
@given(batch=st.lists(requests(), min_size=1, max_size=5), poison=st.sampled_from([math.nan, -1.0, math.inf]))
def test_it_equals_the_slow_reference(batch, poison):
    k, blank = 3, [poison] * 4
    tokens, num_accepted = run(
        [draft + [-7] * (k - len(draft)) for draft, *_ in batch],
        [q + [blank] * (k - len(q)) for _, q, _, _ in batch],
        [p + [blank] * (k + 1 - len(p)) for _, _, p, _ in batch],
        [u[:-1] + [0.5] * (k + 1 - len(u)) + u[-1:] for *_, u in batch],
        [len(draft) for draft, *_ in batch],
    )
    for row, request in enumerate(batch):
        expected, accepted = slow(*request)
        assert num_accepted[row] == accepted
        assert tokens[row] == expected + [-1] * (k + 1 - len(expected))


@settings(deadline=None)
@given(batch=st.lists(requests(), min_size=1, max_size=4))
def test_a_draft_without_probabilities_is_one_hot(batch):
    k = 3
    drafts = [draft + [0] * (k - len(draft)) for draft, *_ in batch]
    one_hot = torch.nn.functional.one_hot(torch.tensor(drafts), 4).float().tolist()
    target = [p + [p[0]] * (k + 1 - len(p)) for _, _, p, _ in batch]
    uniforms = [u[:-1] + [0.5] * (k + 1 - len(u)) + u[-1:] for *_, u in batch]
    num_draft = [len(draft) for draft, *_ in batch]
    assert run(drafts, None, target, uniforms, num_draft) == run(drafts, one_hot, target, uniforms, num_draft)


def test_the_example_by_hand():
    """p = (.5, .3, .2), q = (.2, .7, .1): token 1 is accepted with .3 / .7, else replaced from (.75, 0, .25)."""
    assert residual(P, Q) == pytest.approx([0.75, 0, 0.25])
    threshold = 3 / 7
    assert run([[1]], [[Q]], [[P, P]], [[threshold - 1e-6, 0.9]]) == ([[1, 2]], [1])
    assert run([[1]], [[Q]], [[P, P]], [[threshold + 1e-6, 0.74]]) == ([[0, -1]], [0])
    assert run([[1]], [[Q]], [[P, P]], [[threshold + 1e-6, 0.76]]) == ([[2, -1]], [0])
    assert run([[0]], [[Q]], [[P, P]], [[0.999, 0.6]]) == ([[0, 1]], [1]), "p > q is always accepted"


def test_the_first_rejection_ends_the_draft():
    """The second token is impossible for the target: the third is not looked at, though it would pass."""
    target = [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.25] * 4, [0.25] * 4]
    draft = [[0.5, 0.5, 0, 0]] * 3
    assert run([[0, 1, 0]], [draft], [target], [[0.3, 0.0, 0.0, 0.6]]) == ([[0, 3, -1, -1]], [1])


def test_a_draft_like_the_target_is_always_accepted():
    """p == q to the last bit: no uniform below 1 rejects, float32 division or not."""
    generator = torch.Generator().manual_seed(1)
    probs = torch.softmax(torch.randn(50, 5, 300, generator=generator) * 3, dim=-1)
    draft = torch.multinomial(probs[:, :4].flatten(0, 1), 1, generator=generator).view(50, 4)
    uniforms = torch.full((50, 5), 1 - 2**-53, dtype=torch.float64)
    tokens, num_accepted = rejection_sample(draft, probs[:, :4], probs, torch.full((50,), 4), uniforms)
    assert num_accepted.tolist() == [4] * 50
    assert torch.equal(tokens[:, :4], draft)


def test_what_the_target_forbids_is_never_accepted_and_never_drawn():
    """u = 0 rejects a token of probability 0 too, and the replacement skips such tokens."""
    target = [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]
    for u in (0.0, 0.5, 1 - 2**-53):
        assert run([[0]], [[[1.0, 0.0, 0.0]]], [target], [[0.0, u]]) == ([[1, -1]], [0])
        assert run([[0]], None, [target], [[0.0, u]]) == ([[1, -1]], [0])
        (tokens,), accepted = run([[1]], None, [target], [[u, u]])
        assert accepted == [1]
        assert tokens[1] in (1, 2)


def test_a_token_that_the_target_likes_is_accepted_at_u_0():
    assert run([[0]], None, [[[1e-30, 1.0], [0.0, 1.0]]], [[0.0, 0.0]]) == ([[0, 1]], [1])


def test_greedy_is_the_same_rule_with_one_hot_targets():
    target = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    assert run([[1, 0]], None, [target], [[0.9, 0.9, 0.9]]) == ([[1, 0, 1]], [2])
    assert run([[1, 1]], None, [target], [[0.9, 0.0, 0.9]]) == ([[1, 0, -1]], [1])
    assert run([[0, 0]], None, [target], [[0.0, 0.0, 0.9]]) == ([[1, -1, -1]], [0])


def test_where_rounding_leaves_no_residual_the_target_is_drawn_from():
    """p lies below q only by rounding: nothing is above q, and a division by the empty sum would give NaN."""
    p, q = [0.4999, 0.5], [0.5, 0.5]
    assert run([[0]], [[q]], [[p, p]], [[0.9999, 0.2]]) == ([[0, -1]], [0])
    assert run([[0]], [[q]], [[p, p]], [[0.9999, 0.6]]) == ([[1, -1]], [0])
    assert run([[0]], None, [[[0.9999, 0.0], p]], [[0.99995, 0.5]]) == ([[0, -1]], [0])


def test_nothing_drafted_is_one_draw_from_the_target():
    tokens, num_accepted = rejection_sample(
        torch.empty(2, 0, dtype=torch.int64),
        None,
        torch.tensor([[P], [P]]),
        torch.tensor([0, 0]),
        torch.tensor([[0.4], [0.6]]),
    )
    assert (tokens.tolist(), num_accepted.tolist()) == ([[0], [1]], [0, 0])
    assert run([[2], [1]], [[Q], [Q]], [[P, Q], [P, Q]], [[0.9, 0.4], [0.9, 0.6]], [0, 0])[0] == [[0, -1], [1, -1]]


def test_a_vocabulary_of_one_token_leaves_no_choice():
    """What stands beyond a row's draft is not looked at, and needs no token 1."""
    assert run([[0, 9]], [[[1.0], [9.0]]], [[[1.0]] * 3], [[0.5] * 3], [1]) == ([[0, 0, -1]], [1])


@pytest.mark.parametrize("draft_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("target_dtype", [torch.float32, torch.float64])
def test_draft_and_target_may_differ_in_precision(draft_dtype, target_dtype):
    """Token 1 is rejected (0.3 / 0.7 is below 0.9); the residual is (0.75, 0, 0.25)."""
    q, p = torch.tensor([[Q]], dtype=draft_dtype), torch.tensor([[P, P]], dtype=target_dtype)
    uniforms = torch.tensor([[0.9, 0.74], [0.9, 0.76]], dtype=torch.float64)
    draft = torch.tensor([[1], [1]])
    tokens, _ = rejection_sample(draft, q.expand(2, -1, -1), p.expand(2, -1, -1), torch.tensor([1, 1]), uniforms)
    assert tokens.tolist() == [[0, -1], [2, -1]]


def test_no_requests_give_nothing():
    tokens, num_accepted = rejection_sample(
        torch.empty(0, 2, dtype=torch.int64),
        None,
        torch.empty(0, 3, 4),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, 3),
    )
    assert tokens.shape == (0, 3)
    assert num_accepted.shape == (0,)


def test_the_arguments_stay_as_they_are_and_other_integers_will_do():
    draft, q, p = torch.tensor([[1]], dtype=torch.int32), torch.tensor([[Q]]), torch.tensor([[P, P]])
    num_draft, u = torch.tensor([1], dtype=torch.int32), torch.tensor([[0.9, 0.5]])
    before = [x.clone() for x in (draft, q, p, num_draft, u)]
    tokens, num_accepted = rejection_sample(draft, q, p, num_draft, u)
    assert tokens.dtype == num_accepted.dtype == torch.int64
    assert all(map(torch.equal, before, (draft, q, p, num_draft, u)))


@pytest.mark.parametrize(
    ("draft", "draft_probs", "target_probs", "num_draft", "uniforms"),
    [
        ((2,), (2, 1, 4), (2, 2, 4), (2,), (2, 2)),
        ((2, 1), (2, 1, 4), (2, 1, 4), (2,), (2, 1)),
        ((2, 1), None, (2, 3, 4), (2,), (2, 3)),
        ((2, 1), None, (3, 2, 4), (2,), (3, 2)),
        ((2, 1), (2, 1, 4), (3, 2, 4), (2,), (2, 2)),
        ((2, 1), (2, 1, 4), (2, 2), (2,), (2, 2)),
        ((2, 1), (2, 1, 5), (2, 2, 4), (2,), (2, 2)),
        ((2, 1), (2, 2, 4), (2, 2, 4), (2,), (2, 2)),
        ((2, 1), (1, 1, 4), (2, 2, 4), (2,), (2, 2)),
        ((2, 1), None, (2, 2, 4), (1,), (2, 2)),
        ((2, 1), None, (2, 2, 4), (2, 1), (2, 2)),
        ((2, 1), None, (2, 2, 4), (2,), (2, 1)),
        ((2, 1), None, (2, 2, 4), (2,), (2,)),
        ((2, 1), None, (2, 2, 0), (2,), (2, 2)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(draft, draft_probs, target_probs, num_draft, uniforms):
    with pytest.raises(ValueError, match=r"expected draft_tokens \[B, k\], .* got") as error:
        rejection_sample(
            torch.zeros(draft, dtype=torch.int64),
            None if draft_probs is None else torch.full(draft_probs, 0.25),
            torch.full(target_probs, 0.25),
            torch.zeros(num_draft, dtype=torch.int64),
            torch.zeros(uniforms),
        )
    shapes = (draft, draft_probs, target_probs, num_draft, uniforms)
    assert str(error.value).endswith("{}, {}, {}, {} and {}".format(*[shape and list(shape) for shape in shapes]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draft": [2]}, r"expected num_draft in 0\.\.1, got \[2\]"),
        ({"num_draft": [-1]}, r"expected num_draft in 0\.\.1, got \[-1\]"),
        ({"uniforms": [[1.0, 0.5]]}, r"expected uniforms in \[0, 1\), got \[0\.5, 1\.0\]"),
        ({"uniforms": [[0.5, -0.1]]}, r"expected uniforms in \[0, 1\), got \[-0\.1, 0\.5\]"),
        ({"uniforms": [[0.5, math.nan]]}, r"expected uniforms in \[0, 1\), got"),
        ({"draft": [[3]]}, r"expected draft_tokens in 0\.\.2, got \[3\]"),
        ({"draft": [[-1]]}, r"expected draft_tokens in 0\.\.2, got \[-1\]"),
        (
            {"target_probs": [[[0.5, 0.3, 0.3], P]]},
            r"expected target_probs\[0, 0\] to be probabilities .* sum 1, got sum 1\.1",
        ),
        ({"target_probs": [[P, [0.5, 0.3, 0.1]]]}, r"expected target_probs\[0, 1\] .* got sum 0\.9"),
        ({"target_probs": [[P, [0.5, 0.6, -0.1]]]}, r"expected target_probs\[0, 1\] .* lowest -0\.1"),
        ({"target_probs": [[P, [0.5, math.nan, 0.5]]]}, r"expected target_probs\[0, 1\] .* got sum nan"),
        ({"target_probs": [[P, [0.5, math.inf, 0.5]]]}, r"expected target_probs\[0, 1\] .* got sum inf"),
        ({"draft_probs": [[[0.2, 0.7, 0.2]]]}, r"expected draft_probs\[0, 0\] .* got sum 1\.1"),
        ({"draft_probs": [[[0.3, math.nan, 0.7]]]}, r"expected draft_probs\[0, 0\] .* got sum nan"),
        ({"draft_probs": [[[0.3, 0.0, 0.7]]]}, r"expected draft_probs above 0 at each draft token, got \[0\.0\]"),
    ],
)
def test_what_is_no_draft_and_no_distribution_is_refused(change, message):
    """NaN above all: every comparison with it is false, so that it would reject, and replace with nonsense."""
    arguments = {
        "draft": [[1]],
        "draft_probs": [[Q]],
        "target_probs": [[P, P]],
        "num_draft": [1],
        "uniforms": [[0.5] * 2],
    }
    run(**arguments)
    with pytest.raises(ValueError, match=message):
        run(**{**arguments, **change})


@pytest.mark.parametrize("error", [1e-4, -1e-4])
def test_sums_may_be_off_by_rounding(error):
    """Token 1 is rejected (0.3 / 0.7 is below 0.5), and 0.5 draws token 0 of the residual (0.75, 0, 0.25)."""
    assert run([[1]], [[Q]], [[[0.5, 0.3, 0.2 + error], P]], [[0.5, 0.5]]) == ([[0, -1]], [0])
    assert run([[1]], [[[0.2, 0.7, 0.1 + error]]], [[P, P]], [[0.5, 0.5]]) == ([[0, -1]], [0])


def test_every_request_is_checked_in_the_places_that_count():
    """The wrong row is the second's second; as long as its draft is shorter, it does not count."""
    wrong = [0.5, 0.3, 0.3]
    draft, draft_probs = [[1, 1], [1, 1]], [[Q, Q], [Q, wrong]]
    target = [[P, P, P], [P, P, P]]
    uniforms = [[0.1] * 3] * 2
    run(draft, draft_probs, target, uniforms, [2, 1])
    with pytest.raises(ValueError, match=r"draft_probs\[1, 1\]"):
        run(draft, draft_probs, target, uniforms, [2, 2])
    target = [[P, P, P], [P, P, wrong]]
    run(draft, [[Q, Q]] * 2, target, uniforms, [2, 1])
    with pytest.raises(ValueError, match=r"target_probs\[1, 2\]"):
        run(draft, [[Q, Q]] * 2, target, uniforms, [1, 2])
