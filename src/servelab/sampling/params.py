"""`SamplingParams`: how the next token of a request is chosen, and when the request ends."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one request asks for. Raises ValueError that names the field, what was expected and what came.

    max_tokens: output tokens at most, 1 or more. With the prompt they must fit the engine's `max_model_len`.
    temperature: 0 takes the most likely token (greedy); 1 samples from the model's own distribution.
    seed: fixes the random draws of this request, whatever it is batched with; None draws a fresh seed.
    stop_token_ids: ids that end the output besides the model's own end tokens.
    ignore_eos: the model's end tokens do not end the output; `stop_token_ids` still do.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not is_int(self.max_tokens) or self.max_tokens < 1:
            raise ValueError(f"expected max_tokens to be an integer >= 1, got {self.max_tokens!r}")
        is_number = is_int(self.temperature) or isinstance(self.temperature, float)
        # Comparing is safe where converting is not: no float holds 10**400.
        if not is_number or not 0 <= self.temperature <= sys.float_info.max:
            raise ValueError(f"expected temperature to be a finite number >= 0, got {self.temperature!r}")
        if self.seed is not None and (not is_int(self.seed) or not 0 <= self.seed < 2**63):
            raise ValueError(f"expected seed to be None or an integer in 0..2**63 - 1, got {self.seed!r}")
        if not isinstance(self.stop_token_ids, (tuple, list)) or not all(map(is_int, self.stop_token_ids)):
            raise ValueError(f"expected stop_token_ids to be a tuple of integers, got {self.stop_token_ids!r}")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"expected ignore_eos to be True or False, got {self.ignore_eos!r}")


def is_int(value: object) -> bool:
    """Whether `value` is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
