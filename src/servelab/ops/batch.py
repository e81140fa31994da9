"""What attention must know about a step: who brings how many queries, and where their keys and values lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class KVView(Protocol):
    """A KV cache as attention sees it: for each layer keys and values, each [P, block_size, G, D].

    format: "auto" stores numbers as they are, and has no scales. "int8" has one scale a slot and head,
    [P, block_size, G] float16; "fp8_e4m3" and "fp8_e5m2" (stored as uint8) one a head, [G] float32.
    """

    @property
    def format(self) -> str: ...

    def keys(self, layer: int) -> Tensor: ...

    def values(self, layer: int) -> Tensor: ...

    def key_scales(self, layer: int) -> Tensor | None: ...

    def value_scales(self, layer: int) -> Tensor | None: ...


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The sequences of one step, packed behind each other: T query tokens in all.

    query_lengths: new tokens of each sequence, at least 1 (1 is a decode; more is a prefill, whole or a chunk).
    context_lengths: tokens of each sequence whose keys and values are stored once this step has written its own.
        The queries are the last of them.
    slot_mapping: [T] the slot that each new token's key and value go to; -1 does not write (they are there).
    block_tables: for each sequence its physical blocks in order (paged), or None.
    starts: for each sequence the first slot of its contiguous range, or None. Exactly one of the two is given.
    block_size: slots of a block; slot ``s`` is row ``s % block_size`` of block ``s // block_size``.

    Raises ValueError where lengths, slots and tables do not fit together.
    """

    query_lengths: Sequence[int]
    context_lengths: Sequence[int]
    slot_mapping: Sequence[int]
    block_tables: Sequence[Sequence[int]] | None = None
    starts: Sequence[int] | None = None
    block_size: int = 1

    def __post_init__(self) -> None:
        sequences = len(self.query_lengths)
        if not sequences or len(self.context_lengths) != sequences:
            raise ValueError(
                f"expected at least one sequence and one context length for each, got {sequences} query lengths "
                f"and {len(self.context_lengths)} context lengths"
            )
        for query, context in zip(self.query_lengths, self.context_lengths, strict=True):
            if not 1 <= query <= context:
                raise ValueError(
                    f"expected 1 <= query length <= context length, got {query} queries in a context of {context}"
                )
        if len(self.slot_mapping) != self.num_tokens:
            raise ValueError(
                f"expected one slot for each of the {self.num_tokens} query tokens, got {len(self.slot_mapping)}"
            )
        if (self.block_tables is None) == (self.starts is None):
            raise ValueError("expected either block_tables or starts, got " + ("both" if self.starts else "neither"))
        if self.starts is not None and len(self.starts) != sequences:
            raise ValueError(f"expected {sequences} starts, one a sequence, got {len(self.starts)}")
        if self.block_tables is not None:
            if len(self.block_tables) != sequences:
                raise ValueError(f"expected {sequences} block tables, one a sequence, got {len(self.block_tables)}")
            for table, context in zip(self.block_tables, self.context_lengths, strict=True):
                if len(table) * self.block_size < context:
                    raise ValueError(
                        f"expected a block table that covers {context} tokens, got {len(table)} blocks "
                        f"of {self.block_size} slots"
                    )

    @property
    def num_tokens(self) -> int:
        """T, the query tokens of all sequences together."""
        return sum(self.query_lengths)
