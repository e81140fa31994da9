"""Draws against the exact distribution by chi-square: sampling, and speculation, which must not change it.

Each test draws 4,000 times for each of many seeds and asks for a p-value above 1e-6. The seeds are fixed: what passes
once passes always. The same statistic must reject planted faults at every seed, else it would prove nothing; how
surely it does is calculated too, from the noncentral chi-square distribution.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from servelab.sampling import (
    SamplingParams,
    TokenHistory,
    draw,
    make_generator,
    rejection_sample,
    sample,
    uniform,
    verify,
)

ALPHA = 1e-6
DRAWS = 4_000
P = torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.02], dtype=torch.float64)
Q = torch.tensor([0.10, 0.30, 0.05, 0.20, 0.05, 0.10, 0.12, 0.08], dtype=torch.float64)


def chi_square_p(counts: Tensor, probabilities: Tensor) -> float:
    """The upper tail of chi-square, V - 1 degrees of freedom, of the cells that can occur; 0 when another one did."""
    possible = probabilities > 0
    if counts[~possible].any():
        return 0.0
    counts, expected = counts[possible], probabilities[possible] * counts.sum()
    assert expected.min() >= 5, "chi-square needs cells that are not nearly empty"
    return tail(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1)


def tail(statistic: float, degrees: int) -> float:
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def count(tokens: Tensor | list[int], size: int) -> Tensor:
    return torch.bincount(torch.as_tensor(tokens), minlength=size).double()


def power(wrong: Tensor, right: Tensor, draws: int) -> float:
    """The probability that `draws` from `wrong` have a p-value under ALPHA when tested against `right`, about.

    Chi-square with noncentrality ``draws * sum((wrong - right)^2 / right)``: a Poisson mixture of central ones.
    """
    degrees, shift = len(right) - 1, float(draws * ((wrong - right) ** 2 / right).sum()) / 2
    low, high = 0.0, 1e3
    while high - low > 1e-9:  # the critical value
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degrees) > ALPHA else (low, middle)
    terms = range(max(0, int(shift - 12 * math.sqrt(shift))), int(shift + 12 * math.sqrt(shift)) + 50)
    weights = [math.exp(-shift + term * math.log(shift) - math.lgamma(term + 1)) for term in terms]
    return sum(weight * tail(low, degrees + 2 * term) for weight, term in zip(weights, terms, strict=True))


# --- Sampling ---


@pytest.mark.parametrize("seed", range(12))
def test_at_temperature_1_draws_follow_the_model(seed):
    logits = torch.randn(8, generator=torch.Generator().manual_seed(seed)).double()
    expected = torch.softmax(logits, dim=-1)
    tokens = sample_many(logits.float(), SamplingParams(temperature=1.0), seed)
    assert chi_square_p(count(tokens, 8), expected) > ALPHA
    wrong = torch.softmax(logits / 1.5, dim=-1)
    assert power(expected, wrong, DRAWS) > 0.999
    assert chi_square_p(count(tokens, 8), wrong) < ALPHA, "a temperature that is 50 % off must be noticed"


def sample_many(logits: Tensor, params: SamplingParams, seed: int, history: TokenHistory | None = None) -> list[int]:
    generator = make_generator(seed, "cpu")
    histories = None if history is None else [history] * DRAWS
    return sample(logits.expand(DRAWS, -1), [params] * DRAWS, [generator] * DRAWS, histories, end_token_ids=(7,))


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"temperature": 2.0}, torch.softmax(P.log() / 2, dim=-1)),
        ({"top_k": 3}, torch.tensor([0.30, 0.22, 0.16, 0, 0, 0, 0, 0]) / 0.68),
        ({"top_p": 0.75}, torch.tensor([0.30, 0.22, 0.16, 0.12, 0, 0, 0, 0]) / 0.80),
        ({"min_p": 0.25}, torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0, 0, 0]) / 0.88),
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, torch.tensor([0.30, 0.22, 0.16, 0.12, 0, 0, 0, 0]) / 0.80),
        ({"min_tokens": 1}, torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0]) / 0.98),
        ({"logit_bias": {6: math.log(2)}}, torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0.06, 0.08, 0.02]) / 1.04),
    ],
)
def test_filters_and_biases_follow_their_distribution(wish, expected):
    for seed in range(2):
        params = SamplingParams(**{"temperature": 1.0, **wish})
        tokens = sample_many(P.log().float(), params, seed, TokenHistory([0], []))
        assert chi_square_p(count(tokens, 8), expected.double()) > ALPHA


def test_seeds_are_independent():
    """The first draw of 4,000 neighbouring seeds, and of 4,000 outputs of one: uniform in 20 bins."""
    for generators in (
        (make_generator(seed, "cpu") for seed in range(DRAWS)),
        (make_generator(1, "cpu", index) for index in range(DRAWS)),
    ):
        numbers = torch.tensor([float(uniform(generator, 1)) for generator in generators])
        assert chi_square_p(count((numbers * 20).long(), 20), torch.full((20,), 1 / 20, dtype=torch.float64)) > ALPHA


# --- Speculation: one draft token ---


def drafted(q: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draft tokens [draws] from q and uniforms [draws, 2]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(q, draws, replacement=True, generator=generator)
    return tokens, torch.rand(draws, 2, dtype=torch.float64, generator=generator)


def speculate(p: Tensor, q: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """The first token of each of `draws` requests, and whether the draft was accepted."""
    draft, uniforms = drafted(q, draws, seed)
    tokens, num_accepted = rejection_sample(
        draft[:, None],
        q.float().expand(draws, 1, -1),
        p.float().expand(draws, 2, -1),
        torch.ones(draws, dtype=torch.int64),
        uniforms,
    )
    return tokens[:, 0], num_accepted


def one_step(p: Tensor, q: Tensor, draws: int, seed: int, fault: str = "") -> Tensor:
    """The same rule written down once more, for one draft token, with a fault in it if wanted."""
    draft, u = drafted(q, draws, seed)
    ratio = {"ignores q": p, "ratio upside down": q / p}.get(fault, p / q)
    accepted = u[:, 0] < ratio[draft]
    replacement = p if fault == "no residual" else (p - q).clamp(min=0)
    # What rejected a token is a high number, not any number.
    marks = u[:, 0] if fault == "u twice" else u[:, 1]
    return torch.where(accepted, draft, draw(replacement.expand(draws, -1), marks))


def output_of(p: Tensor, q: Tensor, fault: str) -> Tensor:
    """The distribution that `one_step` has, exactly."""
    ratio = {"ignores q": p, "ratio upside down": q / p}.get(fault, p / q).clamp(max=1)
    replacement = p if fault == "no residual" else (p - q).clamp(min=0)
    return q * ratio + (1 - (q * ratio).sum()) * replacement / replacement.sum()


FAULTS = ["no residual", "ignores q", "ratio upside down"]


@pytest.mark.parametrize("seed", range(100))
def test_one_draft_token_leaves_the_targets_distribution(seed):
    tokens, _ = speculate(P, Q, DRAWS, seed)
    assert chi_square_p(count(tokens, 8), P) > ALPHA
    assert chi_square_p(count(one_step(P, Q, DRAWS, seed), 8), P) > ALPHA, "the statistic accepts what is right"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_at_every_seed(fault):
    """Power above .999 by calculation, and 100 seeds of 100."""
    wrong = output_of(P, Q, fault)
    assert power(wrong, P, DRAWS) > 0.999
    for seed in range(100):
        tokens = count(one_step(P, Q, DRAWS, seed, fault), 8)
        assert chi_square_p(tokens, P) < ALPHA
        assert chi_square_p(tokens, wrong) > ALPHA, "it is the fault that was meant"


def test_the_power_is_right():
    """The calculated probability against the share of 2,000 runs, for a fault so small that it is missed at times."""
    wrong = P + 0.02 * (Q - P) / (Q - P).abs().max()
    found = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(2_000):
        tokens = torch.multinomial(wrong, DRAWS, replacement=True, generator=generator)
        found += chi_square_p(count(tokens, 8), P) < ALPHA
    assert 0.05 < power(wrong, P, DRAWS) < 0.95
    assert found / 2_000 == pytest.approx(power(wrong, P, DRAWS), abs=0.05)


def test_the_number_that_rejected_a_token_must_not_draw_its_replacement():
    """It is above p / q, so that the first tokens of the residual would never come."""
    for seed in range(100):
        assert chi_square_p(count(one_step(P, Q, DRAWS, seed, "u twice"), 8), P) < ALPHA


@pytest.mark.parametrize("seed", range(40))
def test_any_pair_of_distributions(seed):
    """Peaked and flat ones, drafts that miss tokens of the target and name tokens that it forbids."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    p, q = torch.softmax(torch.randn(2, 8, generator=generator).double() * (0.3, 1.0, 1.5)[seed % 3], dim=-1)
    if seed % 4 == 1:
        q[:3] = 0
    if seed % 4 == 2:
        p[4:6] = 0
    if seed % 4 == 3:
        p[0], q[1] = 0, 0
    p, q = p.clamp(min=0.002) * (p > 0), q / q.sum()
    p = p / p.sum()
    tokens, num_accepted = speculate(p, q, DRAWS, seed)
    assert chi_square_p(count(tokens, 8), p) > ALPHA
    assert_rate(num_accepted, float(torch.minimum(p, q).sum()))


def assert_rate(successes: Tensor, rate: float) -> None:
    """A share within 4.9 standard deviations: one time in a million a right one is not."""
    deviation = math.sqrt(max(rate * (1 - rate), 1e-12) / len(successes))
    assert abs(float(successes.double().mean()) - rate) <= 4.9 * deviation


def test_a_hundred_thousand_draws_of_a_vocabulary_of_eight():
    """Rejection resamples from max(p - q, 0), normalised; the acceptance rate is the sum of min(p, q) [vllm#40149]."""
    tokens, num_accepted = speculate(P, Q, 100_000, seed=19)
    assert chi_square_p(count(tokens, 8), P) > ALPHA
    assert_rate(num_accepted, float(torch.minimum(P, Q).sum()))
    assert float(torch.minimum(P, Q).sum()) == pytest.approx(0.66)


@pytest.mark.parametrize("seed", range(10))
def test_a_named_token_is_a_draft_of_one_hot(seed):
    """N-gram drafts: accepted with p(d), replaced from p without d."""
    _, uniforms = drafted(Q, DRAWS, seed)
    draft = torch.full((DRAWS, 1), seed % 8)
    tokens, num_accepted = rejection_sample(
        draft, None, P.float().expand(DRAWS, 2, -1), torch.ones(DRAWS, dtype=torch.int64), uniforms
    )
    assert chi_square_p(count(tokens[:, 0], 8), P) > ALPHA
    assert_rate(num_accepted, float(P[seed % 8]))


# --- Speculation: many draft tokens ---

NEXT = torch.tensor([[0.5, 0.3, 0.2], [0.15, 0.25, 0.6], [0.4, 0.45, 0.15]], dtype=torch.float64)
DRAFT_NEXT = torch.tensor([[0.2, 0.6, 0.2], [0.4, 0.3, 0.3], [0.25, 0.25, 0.5]], dtype=torch.float64)
LENGTH = 4


def chain_distribution() -> Tensor:
    """The probability of each of the 81 ways to go on from token 0 for 4 tokens of the Markov chain `NEXT`."""
    paths = itertools.product(range(3), repeat=LENGTH)
    return torch.tensor(
        [math.prod(float(NEXT[a, b]) for a, b in itertools.pairwise((0, *path))) for path in paths],
        dtype=torch.float64,
    )


def cells(tokens: Tensor) -> Tensor:
    """Counts of the 81 ways. tokens: [N, >= 4]."""
    places = (tokens[:, :LENGTH] * 3 ** torch.arange(LENGTH - 1, -1, -1)).sum(dim=1)
    return count(places, 3**LENGTH)


def speculate_chain(draws: int, seed: int, k: int, reject, ragged: bool = False) -> tuple[Tensor, Tensor]:
    """4 tokens or more of `draws` requests by speculation. Returns tokens [draws, ...] and those of each step's end."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(draws)
    tokens = torch.zeros(draws, 1 + LENGTH + k + 1, dtype=torch.int64)
    ends = torch.zeros(draws, dtype=torch.int64)  # the place of each request's last token
    for _ in range(LENGTH):
        last = [tokens[rows, ends]]
        for _ in range(k):
            last.append(torch.multinomial(DRAFT_NEXT[last[-1]], 1, generator=generator).squeeze(1))
        before = torch.stack(last, dim=1)  # [draws, k + 1]
        num_draft = torch.randint(0, k + 1, (draws,), generator=generator) if ragged else torch.full((draws,), k)
        uniforms = torch.rand(draws, k + 1, dtype=torch.float64, generator=generator)
        emitted, num_accepted = reject(
            before[:, 1:], DRAFT_NEXT[before[:, :-1]].float(), NEXT[before].float(), num_draft, uniforms
        )
        for place in range(k + 1):
            live = (place <= num_accepted) & (ends + 1 < tokens.shape[1])
            ends += live.long()
            tokens[rows[live], ends[live]] = emitted[live, place]
    return tokens[:, 1:], ends


@pytest.mark.parametrize(("k", "ragged"), [(1, False), (3, False), (3, True), (5, True)])
def test_the_tokens_of_several_steps_have_the_joint_distribution_of_the_target(k, ragged):
    """Four tokens in a row of a Markov model, whatever the steps that brought them."""
    for seed in range(5):
        tokens, ends = speculate_chain(20_000, seed, k, rejection_sample, ragged)
        assert int(ends.min()) >= LENGTH
        assert chi_square_p(cells(tokens), chain_distribution()) > ALPHA


def test_a_bonus_token_from_the_wrong_place_is_found():
    """The last token drawn from the distribution after the first draft token instead of the last one."""

    def wrong(draft, draft_probs, target_probs, num_draft, uniforms):
        target_probs = target_probs.clone()
        target_probs[:, -1] = target_probs[:, 1]
        return rejection_sample(draft, draft_probs, target_probs, num_draft, uniforms)

    for seed in range(5):
        tokens, _ = speculate_chain(20_000, seed, 3, wrong)
        assert chi_square_p(cells(tokens), chain_distribution()) < ALPHA


def test_one_step_of_k_tokens_brings_the_expected_number():
    """With one p and one q everywhere: 1 + a + a^2 + a^3 tokens a step (Leviathan et al. 2023, equation 1)."""
    generator = torch.Generator().manual_seed(3)
    draft = torch.multinomial(Q, 3 * 20_000, replacement=True, generator=generator).view(20_000, 3)
    _, num_accepted = rejection_sample(
        draft,
        Q.float().expand(20_000, 3, -1),
        P.float().expand(20_000, 4, -1),
        torch.full((20_000,), 3),
        torch.rand(20_000, 4, dtype=torch.float64, generator=generator),
    )
    rate = float(torch.minimum(P, Q).sum())
    for position in range(3):
        reached = num_accepted[num_accepted >= position]
        assert_rate((reached > position).long(), rate)


@pytest.mark.parametrize("named", [False, True])
def test_verify_has_the_joint_distribution_of_what_the_params_ask_for(named):
    """Two tokens of a Markov model with temperature, top_k and a penalty for repetition, by `verify`.

    The penalty looks back at the draft, so that only a history with the draft tokens in it gives this distribution.
    """
    params = SamplingParams(temperature=0.8, top_k=2, presence_penalty=0.6)

    def after(output: tuple[int, ...]) -> Tensor:
        logits = NEXT[output[-1] if output else 0].log().clone()
        logits[list(set(output))] -= 0.6
        logits = logits / 0.8
        logits[logits.argmin()] = -math.inf
        return torch.softmax(logits, dim=-1)

    expected = torch.stack([after(())[a] * after((a,)) for a in range(3)]).flatten()
    for seed in range(2):
        own = torch.Generator().manual_seed(seed)
        drafts = torch.multinomial(DRAFT_NEXT[0], DRAWS, replacement=True, generator=own).tolist()
        if named:
            drafts = [token % 2 for token in drafts]
        generator = make_generator(seed, "cpu")
        logits = NEXT.log().float()
        rows = torch.stack([logits[token] for draft in drafts for token in (0, draft)])
        results = verify(
            rows,
            [[draft] for draft in drafts],
            [None if named else DRAFT_NEXT[:1].float()] * DRAWS,
            [params] * DRAWS,
            [generator] * DRAWS,
            [TokenHistory([0], [])] * DRAWS,
        )
        pairs = []
        for result in results:
            first = result.token_ids[0]
            if len(result.token_ids) == 1:  # rejected: the next step goes on from there
                second = sample(logits[first : first + 1], [params], [generator], [TokenHistory([0], [first])])
            pairs.append(3 * first + (result.token_ids[1] if len(result.token_ids) > 1 else second[0]))
        assert chi_square_p(count(pairs, 9), expected) > ALPHA
