"""What a run made, and the data card that says so: how a draft head came about, with measured numbers."""

from dataclasses import dataclass

from servelab.training.objective import Acceptance
from servelab.training.state import CurvePoint


@dataclass(frozen=True, slots=True)
class Run:
    """What a run made, and what it says of itself in the data card and beside it as JSON.

    target: the model's name. num_texts, num_reply_tokens: trained on. num_held_out_tokens: measured on.
    num_parameters: of the head; its embedding and output rows are the target's and not counted.
    text_minutes, training_minutes: over all runs. acceptance: of the written file, in bfloat16, at k drafts.
    """

    target: str
    machine: str
    seed: int
    num_texts: int
    num_reply_tokens: int
    num_held_out_tokens: int
    vocabulary_size: int
    num_parameters: int
    text_minutes: float
    training_minutes: float
    training_steps: int
    training_tokens: int
    k: int
    acceptance: Acceptance
    curve: tuple[CurvePoint, ...]


def data_card(name: str, run: Run) -> str:
    """The card as markdown. name: of the file that it stands beside."""
    positions = " | ".join(str(position + 1) for position in range(run.k))
    shares = " | ".join(f"{share:.3f}" for share in run.acceptance.per_position)
    curve = "\n".join(
        f"| {point.minutes:.1f} | {point.tokens:,} | {point.loss:.2f} | {point.acceptance[0]:.3f} "
        f"| {point.tokens_per_step:.2f} |"
        for point in run.curve
    )
    return f"""# Data card of the draft head `{name}`

One transformer layer that guesses the next hidden state of **{run.target}** from its last one; it drafts tokens that
the target then checks, so that it can change how fast an answer comes, and never what the answer is.

## What it was trained on
- {run.num_texts:,} conversations with {run.num_reply_tokens:,} tokens that {run.target} wrote itself, in
  {run.text_minutes:.0f} minutes: {GREEDY}
- The user's side: about two thirds are questions that {run.target} wrote itself, where in a chat the user would speak
  (Magpie, Xu et al. 2024). The rest are prompts put together from forms, subjects and short passages that were written
  for this purpose (`servelab.training.prompt`): explanations, stories, letters, lists, code, sums, rewriting,
  extraction, follow-up questions. Nearly all is English. No text of others was used, and no benchmark.
- What the head learns from each token: the target's hidden state, and its distribution over the draft vocabulary.

## How
- {run.num_parameters:,} parameters in bfloat16; embedding and output rows are the target's own. It can draft
  {run.vocabulary_size:,} tokens: those that the target wrote most often.
- {run.training_steps:,} batches, {run.training_tokens:,} tokens with repeats, in {run.training_minutes:.0f} minutes on
  {run.machine}; seed {run.seed}.

## How well it drafts
Greedy decoding of {run.num_held_out_tokens:,} reply tokens that were held out, drafts of {run.k} tokens throughout.
Of the drafts that were right so far, the share whose next token was right too:

| Draft position | {positions} |
|---|{"---|" * run.k}
| Accepted | {shares} |

**{run.acceptance.tokens_per_step:.2f} tokens per step of the target**, the one that the target adds itself included.

While it learned, on a part of the held-out text:

| Minutes | Tokens | Loss | Accepted at 1 | Tokens per step |
|---|---|---|---|---|
{curve}

## What it is not for
Other weights than those it was trained on (the file names them, and loading it for others is refused). Text unlike the
above, such as other languages or long documents, will see fewer drafts accepted. Errors and biases of an answer are
the target's; the head neither adds nor removes any.
"""


GREEDY = "a little over half of them greedily, the rest at temperature 0.8, in answers of 150 to 250 tokens at most."
