"""`servelab train-draft`: let the model write text, train a draft head on it, and say what it is worth."""

from __future__ import annotations

from pathlib import Path

import typer

from servelab.translation import _


def train(
    model: str, output: str | None, minutes: float, tokens: int | None, steps: int | None, seed: int, k: int
) -> None:
    """Run the training with progress bars; print acceptance, and how to use the head.

    Raises ValueError for options that cannot be, ModelUnavailable for a model that cannot be had.
    """
    from servelab.device import cache_folder
    from servelab.model import load_model
    from servelab.training import train_draft_head

    target = load_model(model)
    path = cache_folder() / "draft-heads" / f"{Path(model).name}.safetensors" if output is None else Path(output)
    run = train_draft_head(target, path, minutes=minutes, tokens=tokens, steps=steps, seed=seed, k=k)
    shares = ", ".join(f"{share:.0%}" for share in run.acceptance.per_position)
    lines = [
        _("Trained on {tokens:,} tokens that {model} wrote.").format(tokens=run.num_reply_tokens, model=run.target),
        _("Accepted of held-out drafts, by position: {shares}.").format(shares=shares),
        _("Tokens per step of the target with drafts of {k}: {tokens:.2f}.").format(
            k=run.k, tokens=run.acceptance.tokens_per_step
        ),
        _("The head is {path}, its data card and learning curve lie beside it.").format(path=path),
        _('Use it with EngineConfig(speculative=DraftHead("{path}")); more --minutes train on.').format(path=path),
    ]
    for line in lines:
        typer.echo(line)
