"""What speculation can win: the acceptance rate, tokens per step from it, and the price of drafting and verifying.

Leviathan, Kalman, Matias: "Fast inference from transformers via speculative decoding", ICML 2023. Each draft token is
taken to be accepted with the same probability, whatever became of the others (equation 1).
"""

from collections.abc import Sequence


def expected_tokens_per_step(acceptance: float, k: int) -> float:
    """Tokens that one target step is expected to bring with k draft tokens: ``1 + a + a^2 + ... + a^k``.

    acceptance: chance that a draft token is accepted when all before it were, 0..1. The last term is there because
    the target's own next token comes with every step: after a rejection in place of the draft, else behind it.
    """
    check_share("acceptance", acceptance)
    check_drafts(k)
    return sum(acceptance**accepted for accepted in range(k + 1))


def speculation_speedup(acceptance: float, k: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens per second with k draft tokens, relative to plain decoding: below 1 it loses.

    draft_cost: time of one draft token; verify_cost: time of the target's forward over k + 1 tokens, 1 where reading
    the weights is all that counts. Both in plain decode steps of the same batch.
    """
    if not draft_cost >= 0 or not verify_cost > 0:
        raise ValueError(f"expected draft_cost >= 0 and verify_cost > 0, got {draft_cost} and {verify_cost}")
    return expected_tokens_per_step(acceptance, k) / (k * draft_cost + verify_cost)


def verification_cost(token_cost: float, batch_size: int, k: int) -> float:
    """`verify_cost` of a batch: the target's forward over k + 1 tokens for each request, in plain decode steps of it.

    token_cost: what one more token adds to a step of one token, as a share of that step; so T tokens take
    ``1 + (T - 1) c``. The fuller the batch, the less of a verification is free.
    """
    if not token_cost >= 0 or batch_size < 1 or k < 0:
        raise ValueError(
            f"expected token_cost >= 0, batch_size >= 1 and k >= 0, got {token_cost}, {batch_size} and {k}"
        )
    return (1 + (batch_size * (k + 1) - 1) * token_cost) / (1 + (batch_size - 1) * token_cost)


def acceptance_rate(p: Sequence[float], q: Sequence[float]) -> float:
    """The chance that a token drawn from the draft's q is accepted by the target's p: ``sum(min(p, q))``.

    p, q: probabilities over one vocabulary. Raises ValueError where one of them is no distribution.
    """
    check_distributions(p, q)
    return float(sum(map(min, p, q)))


def residual(p: Sequence[float], q: Sequence[float]) -> list[float]:
    """What the replacement of a rejected token is drawn from: ``max(p - q, 0)``, normalised.

    p, q: as for `acceptance_rate`. Raises ValueError where p equals q: then nothing is ever rejected.
    """
    check_distributions(p, q)
    excess = [max(target - draft, 0.0) for target, draft in zip(p, q, strict=True)]
    if not any(excess):
        raise ValueError(f"expected q to differ from p, got {list(p)} twice: nothing is rejected")
    return [mass / sum(excess) for mass in excess]


def check_distributions(p: Sequence[float], q: Sequence[float]) -> None:
    if len(p) != len(q):
        raise ValueError(f"expected p and q over one vocabulary, got {len(p)} and {len(q)} tokens")
    for name, distribution in (("p", p), ("q", q)):
        if not all(mass >= 0 for mass in distribution) or not abs(sum(distribution) - 1) <= 1e-6:
            raise ValueError(f"expected {name} as probabilities >= 0 with sum 1, got {list(distribution)}")


def check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in 0..1, got {value}")


def check_drafts(k: int) -> None:
    if k < 0:
        raise ValueError(f"expected k >= 0 draft tokens, got {k}")
