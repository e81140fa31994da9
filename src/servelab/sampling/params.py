"""`SamplingParams`: how the next token of a request is chosen, and when the request ends."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BIAS_LIMIT = 100.0
PENALTY_LIMIT = 2.0
REPETITION_RANGE = (0.01, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one request asks for. Raises ValueError that names the field, what was expected and what came.

    How long:
    max_tokens: output tokens at most, 1 or more. With the prompt they must fit the engine's `max_model_len`.
    min_tokens: no end token and no stop token is chosen before so many output tokens, 0 .. max_tokens.
    ignore_eos: the model's end tokens do not end the output; `stop_token_ids` still do.
    stop: a string, or several, that end the output; the text stops before them.
    stop_token_ids: ids that end the output besides the model's own end tokens.

    Which token:
    temperature: 0 takes the most likely token (greedy); 1 samples from the model's own distribution.
    top_k: only the k most likely tokens; 0 for all. Among equals the lowest ids stay, exactly k in number.
    top_p: only the fewest most likely tokens whose probabilities reach this sum, in (0, 1]; 1 for all.
    min_p: only tokens at least so likely as this share of the most likely one, 0 .. 1; 0 for all.
    repetition_penalty: divides positive and multiplies negative logits of every token of prompt and output;
        0.01 .. 100, 1 for none.
    presence_penalty, frequency_penalty: subtracted from the logit of each output token, once, and once for each
        time it came; -2 .. 2.
    logit_bias: added to the logits, by token id, -100 .. 100; None for none.
    seed: fixes the random draws of this request, whatever it is batched with; None draws a fresh seed.

    What comes back:
    n: independent outputs for the one prompt, 1 or more.
    logprobs: None, or how many of the most likely tokens to report beside each chosen one, 0 or more.
    cache_salt: cached prefixes are shared only among requests with the same salt; None is a salt of its own.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: str | Sequence[str] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        self._check_length()
        self._check_stops()
        self._check_choice()
        if self.seed is not None and (not is_int(self.seed) or not 0 <= self.seed < 2**63):
            raise ValueError(f"expected seed to be None or an integer in 0..2**63 - 1, got {self.seed!r}")
        if not is_int(self.n) or self.n < 1:
            raise ValueError(f"expected n to be an integer >= 1, got {self.n!r}")
        if self.logprobs is not None and (not is_int(self.logprobs) or self.logprobs < 0):
            raise ValueError(f"expected logprobs to be None or an integer >= 0, got {self.logprobs!r}")
        if self.cache_salt is not None and not is_text(self.cache_salt):
            raise ValueError(f"expected cache_salt to be None or a non-empty str of Unicode, got {self.cache_salt!r}")

    @property
    def changes_logits(self) -> bool:
        """Whether `process_logits` has anything to do for this request."""
        return bool(self.logit_bias) or self.needs_history

    @property
    def filters_tokens(self) -> bool:
        """Whether a draw leaves out tokens that the model allows."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on the tokens so far."""
        return (
            self.min_tokens > 0
            or self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def _check_length(self) -> None:
        if not is_int(self.max_tokens) or self.max_tokens < 1:
            raise ValueError(f"expected max_tokens to be an integer >= 1, got {self.max_tokens!r}")
        if not is_int(self.min_tokens) or not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"expected min_tokens to be an integer in 0..max_tokens ({self.max_tokens}), got {self.min_tokens!r}"
            )

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, (tuple, list)) or not all(map(is_text, stop)):
            raise ValueError(f"expected stop to be a non-empty str of Unicode or a sequence of them, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(stop))
        if not isinstance(self.stop_token_ids, (tuple, list)) or not all(map(is_int, self.stop_token_ids)):
            raise ValueError(f"expected stop_token_ids to be a tuple of integers, got {self.stop_token_ids!r}")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"expected ignore_eos to be True or False, got {self.ignore_eos!r}")

    def _check_choice(self) -> None:
        # Comparing is safe where converting is not: no float holds 10**400.
        if not is_number(self.temperature, 0, sys.float_info.max):
            raise ValueError(f"expected temperature to be a finite number >= 0, got {self.temperature!r}")
        if not is_int(self.top_k) or self.top_k < 0:
            raise ValueError(f"expected top_k to be an integer >= 0 (0: all tokens), got {self.top_k!r}")
        if not is_number(self.top_p, 0, 1) or self.top_p == 0:
            raise ValueError(f"expected top_p to be a number in (0, 1], got {self.top_p!r}")
        if not is_number(self.min_p, 0, 1):
            raise ValueError(f"expected min_p to be a number in 0..1, got {self.min_p!r}")
        # Wider and a float32 logit could become infinite: no token would then be left to choose.
        if not is_number(self.repetition_penalty, *REPETITION_RANGE):
            low, high = REPETITION_RANGE
            raise ValueError(
                f"expected repetition_penalty to be a number in {low}..{high:g}, got {self.repetition_penalty!r}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not is_number(getattr(self, name), -PENALTY_LIMIT, PENALTY_LIMIT):
                raise ValueError(f"expected {name} to be a number in -2..2, got {getattr(self, name)!r}")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping) or not all(
                is_int(token_id) and is_number(bias, -BIAS_LIMIT, BIAS_LIMIT)
                for token_id, bias in self.logit_bias.items()
            ):
                raise ValueError(
                    f"expected logit_bias to be None or numbers in -100..100 by token id, got {self.logit_bias!r}"
                )
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))


def is_int(value: object) -> bool:
    """Whether `value` is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object, low: float, high: float) -> bool:
    """Whether `value` is an integer or a float in ``low .. high``; True, False and NaN are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def is_text(value: object) -> bool:
    """Whether `value` is a non-empty str of Unicode. Half a surrogate pair (a cut JSON escape) is not."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= character <= "\udfff" for character in value)
