"""What a request must be to enter the engine. Everything is checked here, before anything changes."""

from collections.abc import Container, Sequence

from servelab.engine.config import EngineConfig
from servelab.engine.request import sample_id
from servelab.model import Model
from servelab.sampling import SamplingParams
from servelab.sampling.params import is_int


def check_parts(model: object, config: object) -> tuple[Model, EngineConfig]:
    """What an engine is built from, the default configuration for None. Raises ValueError for anything else."""
    if not isinstance(model, Model):
        raise ValueError(f"expected a Model, as load_model returns it, got {type(model).__name__}")
    if config is None:
        return model, EngineConfig()
    if not isinstance(config, EngineConfig):
        raise ValueError(f"expected config as EngineConfig, got {type(config).__name__}")
    return model, config


def check_prompt(prompt: object, model: Model) -> list[int]:
    """The token ids of a prompt, text or ids. Raises ValueError that names expected and got."""
    vocab_size = model.config.vocab_size
    if isinstance(prompt, str):
        token_ids = model.tokenizer.encode(check_text(prompt))
    elif isinstance(prompt, (list, tuple)):
        token_ids = list(prompt)
    else:
        raise ValueError(f"expected a prompt as str or list[int], got {type(prompt).__name__}")
    # A text of no characters is none either, although many a tokenizer would put its first token before it.
    if not prompt or not token_ids:
        raise ValueError(f"expected a prompt of at least 1 token, got {prompt!r}")
    for position, token_id in enumerate(token_ids):
        if not is_int(token_id) or not 0 <= token_id < vocab_size:
            raise ValueError(
                f"expected token ids as integers in 0..{vocab_size - 1}, got {token_id!r} at position {position}"
            )
    return token_ids


def check_text(text: str, what: str = "a prompt") -> str:
    """The text, when it is Unicode. Half a surrogate pair (a cut JSON escape) is not, and no tokenizer takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"expected {what} of Unicode characters, got {text[error.start]!r}") from None
    return text


def check_params(params: object, model: Model) -> SamplingParams:
    """The parameters, or the defaults for None. Raises ValueError where the model's vocabulary does not fit."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise ValueError(f"expected params as SamplingParams, got {type(params).__name__}")
    for name, token_ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
        for token_id in token_ids:
            if not 0 <= token_id < model.config.vocab_size:
                raise ValueError(f"expected {name} in 0..{model.config.vocab_size - 1}, got {token_id}")
    if params.min_tokens > 0:  # nothing to choose would fail the whole step, for whoever shares it
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else model.tokenizer.eos_token_ids)}
        if len(ends) >= model.config.vocab_size:
            raise ValueError(f"expected a token that ends nothing before min_tokens, got {len(ends)} that all do")
    return params


def check_seats(n: int, config: EngineConfig) -> None:
    """Raise ValueError when the answers to one prompt could never run together, a token each in every step."""
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        limit = getattr(config, name)
        if n > limit:
            raise ValueError(f"expected n <= {limit} ({name}), got {n}")


def check_length(num_prompt_tokens: int, max_tokens: int, max_model_len: int, num_slots: int) -> None:
    """Raise ValueError when the request could never finish: too long for the model, or for the whole KV pool."""
    limits = ((max_model_len, "max_model_len"), (num_slots, "the slots of the KV pool"))
    for limit, name in limits:
        if num_prompt_tokens + max_tokens > limit:
            raise ValueError(
                f"expected prompt + max_tokens <= {limit} ({name}), got {num_prompt_tokens} prompt tokens "
                f"+ {max_tokens} max_tokens = {num_prompt_tokens + max_tokens}"
            )


def check_request_id(request_id: object, n: int, taken: Container[str]) -> str:
    """The id, when no unfinished request has it or the name of one of its `n` answers. Raises ValueError otherwise."""
    if not isinstance(request_id, str) or not request_id:
        raise ValueError(f"expected request_id as a non-empty str, got {request_id!r}")
    check_text(request_id, "a request_id")
    for index in range(n):
        if sample_id(request_id, index) in taken:
            again = sample_id(request_id, index)
            raise ValueError(f"expected a request_id that no unfinished request has, got {again!r} again")
    return request_id


def check_prompts(
    prompts: object, params: SamplingParams | Sequence[SamplingParams] | None
) -> list[tuple[object, SamplingParams | None]]:
    """Pair each prompt of `generate` with its parameters. Raises ValueError where the two lists do not match."""
    if not isinstance(prompts, (list, tuple)):
        raise ValueError(f"expected a list of prompts, got {type(prompts).__name__}")
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params) for prompt in prompts]
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"expected params as SamplingParams or a list of them, got {type(params).__name__}")
    if len(params) != len(prompts):
        raise ValueError(f"expected one SamplingParams for each of {len(prompts)} prompts, got {len(params)}")
    return list(zip(prompts, params, strict=True))
