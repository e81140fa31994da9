"""The `rejection_sample` kernel: token for token what the reference gives, which `tests/sampling` proves."""

import pytest
import torch

from servelab.kernels import rejection_sample, rejection_sample_reference
from servelab.kernels.rejection_sample import SIZE


def make(num_requests, k, vocab_size, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_requests, k + 1, vocab_size, generator=generator, dtype=dtype).mul(2)
    q = logits[:, :k].softmax(-1)
    p = (logits + torch.randn(logits.shape, generator=generator, dtype=dtype).mul(0.7)).softmax(-1)
    tokens = torch.stack([torch.multinomial(q[:, i], 1, generator=generator)[:, 0] for i in range(k)], 1)
    num_draft = torch.randint(0, k + 1, (num_requests,), generator=generator)
    return tokens, q, p, num_draft, torch.rand(num_requests, k + 1, generator=generator, dtype=torch.float64)


def check(run, tokens, q, p, num_draft, uniforms):
    got = run(rejection_sample, tokens, q, p, num_draft, uniforms).result
    want = rejection_sample_reference(tokens, q, p, num_draft, uniforms)
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("k", "vocab_size"), [(1, 1), (1, 3), (4, 8), (3, 100), (2, SIZE), (2, SIZE + 1), (2, 5000)])
def test_token_for_token(run, k, vocab_size, dtype):
    _, num_accepted = check(run, *make(12, k, vocab_size, dtype=dtype))
    if vocab_size == 8:
        assert len(num_accepted.unique()) > 2


@pytest.mark.parametrize("vocab_size", [3, 3000])
def test_drafts_that_were_named_outright(run, vocab_size):
    tokens, _, p, num_draft, uniforms = make(12, 3, vocab_size)
    check(run, tokens, None, p, num_draft, uniforms)


def test_what_stands_beyond_num_draft_is_not_looked_at(run):
    tokens, q, p, num_draft, uniforms = make(8, 3, 20)
    want = check(run, tokens, q, p, num_draft, uniforms)
    for row, n in enumerate(num_draft.tolist()):
        tokens[row, n:] = -5
        q[row, n:] = float("nan")
        p[row, n + 1 :] = float("nan")
    got = run(rejection_sample, tokens, q, p, num_draft, uniforms).result
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_equal_distributions_are_always_accepted_and_an_empty_residual_falls_back_to_p(run):
    tokens, q, _, num_draft, uniforms = make(6, 2, 50)
    p = torch.cat((q, q[:, :1]), dim=1)
    num_draft[:] = 2
    uniforms[:, :2] = 1 - 2.0**-53
    _, num_accepted = check(run, tokens, q, p, num_draft, uniforms)
    assert num_accepted.tolist() == [2] * 6
    # Named outright where p is certain of another token by rounding alone: nothing but the rejected token has weight.
    certain = torch.zeros(1, 2, 5)
    certain[..., 3] = 1.0 - 2.0**-20
    got = check(
        run,
        torch.tensor([[3]]),
        None,
        certain,
        torch.tensor([1]),
        torch.tensor([[1 - 2.0**-30, 0.5]], dtype=torch.float64),
    )
    assert got[0].tolist() == [[3, -1]]


@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
def test_a_place_of_weight_0_is_never_drawn(run, u):
    p = torch.zeros(1, 2, 3 * SIZE)
    p[0, :, SIZE + 5] = 0.25
    p[0, :, 2 * SIZE + 7] = 0.75
    uniforms = torch.tensor([[0.0, u]], dtype=torch.float64)
    tokens, _ = check(run, torch.tensor([[SIZE + 5]]), None, p, torch.tensor([0]), uniforms)
    assert tokens[0, 0] in (SIZE + 5, 2 * SIZE + 7)


def test_no_drafts_at_all_is_a_draw_from_p():
    _, _, p, _, uniforms = make(4, 1, 9)
    tokens, num_accepted = rejection_sample(
        torch.zeros(4, 0, dtype=torch.int64), None, p[:, :1], torch.zeros(4, dtype=torch.int64), uniforms[:, :1]
    )
    assert tokens.shape == (4, 1)
    assert num_accepted.tolist() == [0] * 4


def test_refuses_shapes_that_do_not_fit():
    tokens, q, p, num_draft, uniforms = make(4, 2, 9)
    with pytest.raises(ValueError, match=r"target_probs \[B, k \+ 1, V\]"):
        rejection_sample(tokens, q, p[:, :2], num_draft, uniforms)
    with pytest.raises(ValueError, match=r"uniforms \[B, k \+ 1\]"):
        rejection_sample(tokens, q, p, num_draft, uniforms[:, :2])
