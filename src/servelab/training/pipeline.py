"""From nothing to a draft head: the target writes text, then a head is trained on it; each goes on where it stopped."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from servelab.device import cache_folder, machine_name
from servelab.model import Model
from servelab.speculative.head import HeadNetwork, fingerprint, save_head
from servelab.training.card import Run, data_card
from servelab.training.corpus import Corpus, Shard
from servelab.training.text import TextWriter
from servelab.training.trainer import Trainer, TrainingConfig
from servelab.translation import _

TEXT_SHARE = 0.45  # of the minutes; the rest is training


def train_draft_head(
    target: Model,
    output: Path,
    *,
    minutes: float = 10.0,
    tokens: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    k: int = 4,
    vocabulary_size: int = 4096,
    folder: Path | None = None,
    progress: bool = True,
) -> Run:
    """Write a draft head for `target` to `output` (safetensors), with a data card (.md) and numbers (.json) beside it.

    minutes: in all, over all runs with this seed: what was done before is not done again.
    tokens: the target writes this many, instead of what it gets done in 45 % of the minutes.
    steps: train for this many batches instead of the rest of the minutes. With both, nothing depends on the clock.
    k: length of the drafts that acceptance is measured with. vocabulary_size: tokens that the head can draft.
    folder: of texts and training state, by default one for this target and seed in the cache.
    progress: draw bars on stderr.

    Ctrl-C loses the shard of texts it was at, or 30 seconds of training. Raises ValueError for options that cannot
    be, and when another run is at work in the same folder.
    """
    text_seconds = 60 * minutes * TEXT_SHARE
    config = TrainingConfig(
        minutes=None if steps is not None else minutes * (1 - TEXT_SHARE),
        steps=steps,
        seed=seed,
        k=k,
        vocabulary_size=vocabulary_size,
    )
    if tokens is not None and tokens < 1:
        raise ValueError(f"expected tokens of at least 1, got {tokens}")
    if output.suffix != ".safetensors":
        raise ValueError(f"expected an output that ends in .safetensors, got {output}")
    folder = folder or cache_folder() / "draft-heads" / f"{fingerprint(target)[:12]}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            shards = write_texts(target, folder, seed, tokens, text_seconds, progress)
            trainer = train(target, Corpus(shards), config, folder / "training.safetensors", progress)
            return write_head(trainer, output, shards)
    except Timeout:
        raise ValueError(f"expected one run at a time, got another at work in {folder}") from None


def write_texts(
    target: Model, folder: Path, seed: int, tokens: int | None, seconds: float, progress: bool
) -> list[Shard]:
    """The shards that are there, and as many more as it takes."""
    shards: list[Shard] = []
    while (path := folder / f"texts-{len(shards):05}.safetensors").exists():
        shards.append(Shard.load(path))
    spent = sum(shard.seconds for shard in shards)
    written = sum(shard.num_reply_tokens for shard in shards)
    writer: TextWriter | None = None
    with tqdm(desc=_("The target writes"), total=tokens, initial=written, unit="tok", disable=not progress) as bar:
        while not shards or (written < tokens if tokens is not None else spent < seconds):
            writer = writer or TextWriter(target, seed)
            shard = writer.write(len(shards), bar.update)
            shard.save(folder / f"texts-{len(shards):05}.safetensors")
            shards.append(shard)
            spent += shard.seconds
            written += shard.num_reply_tokens
    return shards


def train(target: Model, corpus: Corpus, config: TrainingConfig, state_path: Path, progress: bool) -> Trainer:
    trainer = Trainer(target, corpus, config, state_path)
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    with tqdm(
        desc=_("The head learns"), total=1.0, initial=trainer.share, bar_format=form, disable=not progress
    ) as bar:

        def show(trainer: Trainer) -> None:
            bar.update(trainer.share - bar.n)
            last = trainer.progress.curve[-1]
            bar.set_postfix_str(
                _("loss {loss:.2f}, {tokens:.2f} tokens a step").format(
                    loss=trainer.progress.loss, tokens=last.tokens_per_step
                )
            )

        trainer.run(show)
    return trainer


def write_head(trainer: Trainer, output: Path, shards: Sequence[Shard]) -> Run:
    """Write the head, measure it as the file holds it, and write down what came out."""
    partial = output.with_name(output.name + ".partial")
    notes = f"trained by servelab on {trainer.corpus.num_reply_tokens} tokens that {trainer.model.name} wrote"
    save_head(partial, trainer.network, trainer.vocabulary, trainer.model, notes)
    partial.replace(output)
    progress, corpus = trainer.progress, trainer.corpus
    run = Run(
        target=trainer.model.name,
        machine=machine_name(),
        seed=trainer.config.seed,
        num_texts=len(corpus.train),
        num_reply_tokens=corpus.num_reply_tokens,
        num_held_out_tokens=sum(int(text.reply.sum()) for text in corpus.held_out),
        vocabulary_size=len(trainer.vocabulary),
        num_parameters=sum(parameter.numel() for parameter in trainer.network.parameters()),
        text_minutes=sum(shard.seconds for shard in shards) / 60,
        training_minutes=progress.seconds / 60,
        training_steps=progress.step,
        training_tokens=progress.tokens,
        k=trainer.config.k,
        acceptance=trainer.measure(as_written(trainer.network)),
        curve=tuple(progress.curve),
    )
    write_text(output.with_suffix(".json"), json.dumps(asdict(run), indent=2) + "\n")
    write_text(output.with_suffix(".md"), data_card(output.name, run))
    return run


def as_written(network: HeadNetwork) -> HeadNetwork:
    """A copy with the weights as the file holds them: rounded to bfloat16."""
    rounded = copy.deepcopy(network)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return rounded


def write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
