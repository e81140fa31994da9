"""What speculation can win: tokens per step from the acceptance rate, and the price of drafting and verifying.

Leviathan, Kalman, Matias: "Fast inference from transformers via speculative decoding", ICML 2023, equation 1.
"""


def expected_tokens_per_step(acceptance: float, k: int) -> float:
    """Tokens that one target step is expected to bring with k draft tokens: ``1 + a + a^2 + ... + a^k``.

    acceptance: chance that a draft token is accepted when all before it were, 0..1. The last term is there because
    the target's own next token comes with every step: after a rejection in place of the draft, else behind it.
    """
    check_share("acceptance", acceptance)
    check_drafts(k)
    return sum(acceptance**accepted for accepted in range(k + 1))


def speculation_speedup(acceptance: float, k: int, draft_cost: float, verify_cost: float = 0.0) -> float:
    """Tokens per second with k draft tokens, relative to plain decoding: below 1 it loses.

    draft_cost: time of one draft token; verify_cost: what one more token makes the target's step longer (0 where
    reading the weights is all that counts). Both as shares of the time of a plain decode step of the same batch.
    """
    for name, cost in (("draft_cost", draft_cost), ("verify_cost", verify_cost)):
        if not cost >= 0:
            raise ValueError(f"expected {name} >= 0, got {cost}")
    return expected_tokens_per_step(acceptance, k) / (1 + k * (draft_cost + verify_cost))


def batch_verify_cost(token_cost: float, batch_size: int) -> float:
    """`verify_cost` of a batch: one more token for each of its requests, as a share of its plain decode step.

    token_cost: what one more token adds to a step of one token, as a share of that step. The step of a batch takes
    ``1 + (B - 1) c`` and B more tokens take ``B c``: the fuller the batch, the less verifying is free.
    """
    if not token_cost >= 0:
        raise ValueError(f"expected token_cost >= 0, got {token_cost}")
    if batch_size < 1:
        raise ValueError(f"expected batch_size >= 1, got {batch_size}")
    return batch_size * token_cost / (1 + (batch_size - 1) * token_cost)


def check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in 0..1, got {value}")


def check_drafts(k: int) -> None:
    if k < 0:
        raise ValueError(f"expected k >= 0 draft tokens, got {k}")
