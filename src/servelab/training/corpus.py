"""Texts that the target wrote, with its hidden states: how they lie in files, and how training reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from servelab.model.weights import open_safetensors

# One greedy text in so many is never trained on: acceptance is measured on these.
HELD_OUT = 10
TENSORS = ("token_ids", "reply", "hidden", "lengths", "greedy")


@dataclass(frozen=True, slots=True)
class Text:
    """One conversation. N tokens.

    token_ids: [N] int64. reply: [N] bool, the target wrote this token. hidden: [N, E] bfloat16, the target's state
    after its last layer, before the final norm. greedy: every token of the replies is the target's most likely one.
    """

    token_ids: Tensor
    reply: Tensor
    hidden: Tensor
    greedy: bool

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Shard:
    """Texts packed behind each other, as one file holds them. N tokens, R texts.

    token_ids: [N] int32; reply: [N] uint8; hidden: [N, E] bfloat16; lengths: [R] int32; greedy: [R] uint8.
    seconds: what writing them took.
    """

    token_ids: Tensor
    reply: Tensor
    hidden: Tensor
    lengths: Tensor
    greedy: Tensor
    seconds: float = 0.0

    @classmethod
    def pack(cls, texts: Sequence[Text], seconds: float = 0.0) -> "Shard":
        return cls(
            token_ids=torch.cat([text.token_ids for text in texts]).to(torch.int32),
            reply=torch.cat([text.reply for text in texts]).to(torch.uint8),
            hidden=torch.cat([text.hidden for text in texts]),
            lengths=torch.tensor([len(text) for text in texts], dtype=torch.int32),
            greedy=torch.tensor([text.greedy for text in texts], dtype=torch.uint8),
            seconds=seconds,
        )

    @property
    def num_reply_tokens(self) -> int:
        return int(self.reply.sum())

    def texts(self) -> Iterator[Text]:
        stop = 0
        for length, greedy in zip(self.lengths.tolist(), self.greedy.tolist(), strict=True):
            start, stop = stop, stop + length
            rows = slice(start, stop)
            yield Text(self.token_ids[rows].long(), self.reply[rows].bool(), self.hidden[rows], bool(greedy))

    def save(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        save_file({name: getattr(self, name) for name in TENSORS}, partial, metadata={"seconds": str(self.seconds)})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Shard":
        """Raises ValueError when the file is cut off or holds something else."""
        with open_safetensors(path) as file:
            if set(file.keys()) != set(TENSORS):
                raise ValueError(f"expected the tensors {sorted(TENSORS)} in {path}, got {sorted(file.keys())}")
            seconds = float((file.metadata() or {}).get("seconds", 0.0))
            return cls(**{name: file.get_tensor(name) for name in TENSORS}, seconds=seconds)


class Corpus:
    """Texts to train on, and greedy ones to measure on, which are never trained on.

    Raises ValueError when there are too few.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        texts = [text for shard in shards for text in shard.texts()]
        greedy = [index for index, text in enumerate(texts) if text.greedy]
        if len(greedy) < HELD_OUT:
            raise ValueError(f"expected at least {HELD_OUT} greedy texts to measure on one of them, got {len(greedy)}")
        held_out = set(greedy[HELD_OUT - 1 :: HELD_OUT])
        self.held_out = [texts[index] for index in sorted(held_out)]
        self.train = [text for index, text in enumerate(texts) if index not in held_out]

    @property
    def num_reply_tokens(self) -> int:
        return sum(int(text.reply.sum()) for text in self.train)

    def vocabulary(self, size: int, vocab_size: int) -> Tensor:
        """The `size` tokens that the target writes most often: [size] int64, ascending.

        Tokens that it has not written yet follow in the order of their ids: byte-pair encoding gives low ids to
        the pieces that are frequent in its own training text.
        """
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for text in self.train:
            counts += torch.bincount(text.token_ids[text.reply], minlength=vocab_size)
        order = counts.sort(descending=True, stable=True).indices
        return order[:size].sort().values

    def batches(self, num_tokens: int, seed: int, epoch: int) -> Iterator[list[Text]]:
        """The training texts in an order of their own for each epoch, in batches of at least `num_tokens` tokens."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        batch: list[Text] = []
        for index in torch.randperm(len(self.train), generator=generator).tolist():
            batch.append(self.train[index])
            if sum(map(len, batch)) >= num_tokens:
                yield batch
                batch = []
        if batch:
            yield batch
