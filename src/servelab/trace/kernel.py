"""What a kernel did in one launch: for every program what it loaded and stored, and what was wrong with it.

Bytes are requested bytes: what programs ask for. A GPU's caches answer a part of it, so that less comes from memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = "servelab-kernel"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of one program, of elements that its mask lets through.

    kind: "load" or "store" (an atomic operation is both). tensor: the argument that was accessed, "?" for none.
    line: of the kernel's source file. num_elements, num_bytes: with each lane counted. ranges: of the tensor's memory,
    in elements from its first, as [start, stop) in rising order, each element once.
    """

    kind: str
    tensor: str
    line: int
    num_elements: int
    num_bytes: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One program of a grid: its id along three axes, and its accesses in order."""

    id: tuple[int, int, int]
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What would be wrong on a GPU, seen at one lane of one access.

    kind: "out of bounds" (the address belongs to no tensor), "race" (another program, `other`, stored there too), or
    "never written" (a load of what nobody wrote, in a tensor that the launcher left empty).
    program: who; line, text: where in the source. tensor: whose memory it is, or is nearest. element: counted from the
    tensor's first; size: elements that the tensor spans. lane: place in the tile that was loaded or stored; masked:
    how many lanes of the tile the mask held back, None where there was no mask. count: lanes of the access that do it.
    """

    kind: str
    program: tuple[int, int, int]
    line: int
    text: str
    tensor: str
    element: int
    size: int
    lane: tuple[int, ...]
    masked: int | None
    count: int
    other: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        mask = "no mask" if self.masked is None else f"a mask that holds back {self.masked} lanes"
        where = f"program {self.program}, line {self.line}: {self.text}"
        lane = f"lane {list(self.lane)} of the tile, with {mask}"
        match self.kind:
            case "race":
                what = f"element {self.element} of {self.tensor} was stored by program {self.other} too"
            case "never written":
                what = f"element {self.element} of {self.tensor} is loaded, and nothing has written it"
            case _:
                what = f"element {self.element} of {self.tensor}, which has elements 0 to {self.size - 1}"
        return f"{self.kind}: {what}\n  {where}\n  {lane}; {self.count} lanes in all"


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """An argument in memory. num_elements: of the tensor; num_stored: of these, how many this launch stored to.

    came_empty: the launcher took it with `torch.empty`, so that what is not stored is never written.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    num_elements: int
    num_stored: int
    came_empty: bool


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One launch of one kernel. constants: compile-time arguments and options, as text where they are no numbers."""

    kernel: str
    grid: tuple[int, int, int]
    constants: dict[str, Any]
    tensors: tuple[TensorRecord, ...]
    programs: tuple[ProgramRecord, ...]
    faults: tuple[Fault, ...]

    def accesses(self, kind: str | None = None, tensor: str | None = None) -> Iterator[Access]:
        """Of all programs, in order; of one kind and of one tensor where they are given."""
        for program in self.programs:
            for access in program.accesses:
                if kind in (None, access.kind) and tensor in (None, access.tensor):
                    yield access

    def loaded_bytes(self, tensor: str | None = None) -> int:
        """Requested by all programs, from one tensor or from all."""
        return sum(access.num_bytes for access in self.accesses("load", tensor))

    def stored_bytes(self, tensor: str | None = None) -> int:
        return sum(access.num_bytes for access in self.accesses("store", tensor))

    def tensor(self, name: str) -> TensorRecord:
        """Raises ValueError for a name that the kernel does not have."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise ValueError(f"expected a tensor in {[tensor.name for tensor in self.tensors]}, got {name!r}")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> KernelRecord:
        """Raises ValueError for what `to_json` did not write."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise ValueError(f"expected a {FORMAT} of version {VERSION}, got {str(data)[:60]!r}")
        try:
            return cls(
                kernel=data["kernel"],
                grid=_triple(data["grid"]),
                constants=dict(data["constants"]),
                tensors=tuple(TensorRecord(**{**row, "shape": tuple(row["shape"])}) for row in data["tensors"]),
                programs=tuple(
                    ProgramRecord(_triple(row["id"]), tuple(_access(access) for access in row["accesses"]))
                    for row in data["programs"]
                ),
                faults=tuple(_fault(row) for row in data["faults"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected the fields of a version {VERSION} kernel record, got: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record as JSON. The file appears whole or not at all."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(json.dumps(self.to_json(), separators=(",", ":")), encoding="utf-8")
        partial.replace(target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelRecord:
        """Raises ValueError for a file that is no kernel record."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"expected a JSON kernel record in {path}, got: {error}") from None
        return cls.from_json(data)


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _access(row: dict[str, Any]) -> Access:
    return Access(**{**row, "ranges": tuple((start, stop) for start, stop in row["ranges"])})


def _fault(row: dict[str, Any]) -> Fault:
    other = None if row["other"] is None else _triple(row["other"])
    return Fault(**{**row, "program": _triple(row["program"]), "lane": tuple(row["lane"]), "other": other})
