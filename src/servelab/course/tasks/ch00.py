"""The self-test of chapter 00: how many tokens have their K and V stored when a request ends."""

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _


def _stored(num_prompt_tokens: int, num_output_tokens: int) -> int:
    return num_prompt_tokens + num_output_tokens - 1


def _visible(seed: int) -> list[Case]:
    return [Case(arguments, _stored(*arguments)) for arguments in ((7, 1), (2, 5))]


def _hidden(seed: int) -> list[Case]:
    rng = draw(seed, "00.stored")
    drawn = [(rng.randint(1, 2000), rng.randint(1, 500)) for _each in range(5)]
    return [Case(arguments, _stored(*arguments)) for arguments in [*drawn, (1, 1)]]


STORED = Task(
    id="00.stored",
    title=_("Tokens in the cache"),
    kind="fill",
    points=1,
    minutes=3,
    difficulty="easy",
    call="tokens_stored(num_prompt_tokens, num_output_tokens)",
    visible=_visible,
    hidden=_hidden,
    mistakes=(
        Mistake(
            "all tokens",
            lambda case, got: got == sum(case.arguments),
            _("You count every token there is. Does the very last output token still pass the network?"),
        ),
        Mistake(
            "the prompt only",
            lambda case, got: got == case.arguments[0] and case.arguments[1] > 1,
            _("This is the prompt alone. Later output tokens look at earlier output tokens too."),
        ),
        Mistake(
            "the output only",
            lambda case, got: got in (case.arguments[1], case.arguments[1] - 1),
            _("This is the output alone. What do the output tokens look at first of all?"),
        ),
        Mistake(
            "one too few",
            lambda case, got: got == sum(case.arguments) - 2,
            _("Try a request with a single output token. Which of its prompt tokens passed the network?"),
        ),
        Mistake(
            "a product",
            lambda case, got: got == case.arguments[0] * case.arguments[1],
            _("This is a product. Each token is stored once, however often it is looked at."),
        ),
    ),
    hints=(
        _("7 prompt tokens, 1 output token: which tokens passed the network before it came out?"),
        _("A token is stored when it passes the network, and the next token comes out after that."),
        _("all prompt tokens, and the output tokens that had a token after them"),
    ),
)

TASKS = (STORED,)
