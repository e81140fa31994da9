"""Looks on while Triton's interpreter runs a kernel. Lives in a process with TRITON_INTERPRET=1 (`worker`).

The interpreter turns every load and store into a call of its builder, with the address and the mask of each lane. Those
calls are taken over. The kernel's pointers are made up, each tensor far from the next: an address says which tensor the
kernel meant, also where it is past its end. It is counted, and followed only if it is an element of that tensor.
"""

import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, _get_np_dtype, interpreter_builder

from servelab.kernels.launch import Launch
from servelab.trace.kernel import Access, Fault, KernelRecord, ProgramRecord, TensorRecord

MAX_FAULTS = 20
DISTANCE = 2**44  # bytes from one made-up pointer to the next
TRITON_FOLDER = str(Path(triton.__file__).parent)
HERE = str(Path(__file__))


class EmptyTensors(TorchFunctionMode):
    """Fills what `torch.empty` gives with NaN or the lowest integer, and knows which of its bytes were stored to since.

    A launcher's result and its intermediate tensors begin so: what a kernel forgets to write then shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, tuple[Tensor, np.ndarray]] = {}  # by address; the tensor keeps the address its own

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (torch.empty, torch.empty_like, Tensor.new_empty) and result.device.type == "cpu":
            result.fill_(float("nan") if result.is_floating_point() else torch.iinfo(result.dtype).min)
            storage = result.untyped_storage()
            self.written[storage.data_ptr()] = (result, np.zeros(storage.nbytes(), dtype=bool))
        return result

    def of(self, tensor: Tensor) -> np.ndarray | None:
        """One bool a byte of the memory that tensor is a view of, or None where it did not come empty."""
        found = self.written.get(tensor.untyped_storage().data_ptr())
        return None if found is None else found[1]


class Argument:
    """A tensor that the kernel was given: which elements are its own, and who stored to them.

    written: one bool a byte of its storage, where it came empty (`EmptyTensors`).
    """

    def __init__(self, name: str, tensor: Tensor, written: np.ndarray | None, place: int) -> None:
        self.name, self.tensor = name, tensor
        self.start = (place + 1) * DISTANCE  # where the kernel is told that it begins
        self.written = None if written is None else written[tensor.storage_offset() * tensor.itemsize :]
        self.itemsize = tensor.itemsize
        self.span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.span = self.span if tensor.numel() else 0
        own = np.zeros(self.span, dtype=bool)
        if self.span:
            torch.as_strided(torch.from_numpy(own), tensor.shape, tensor.stride()).fill_(True)
        self.own = own  # [span] the elements between the first and the last that are the tensor's
        self.stored_by = np.full(self.span, -1, dtype=np.int64)  # [span] the program, by its place in the grid

    def elements(self, addresses: np.ndarray) -> np.ndarray:
        """Of addresses, the element; -1 for one that is not the tensor's, or not where an element begins."""
        offsets = addresses.astype(np.int64) - self.start
        elements = np.where(offsets % self.itemsize == 0, offsets // self.itemsize, -1)
        inside = (elements >= 0) & (elements < self.span)
        elements = np.where(inside, elements, -1)
        return np.where(inside & self.own[np.where(inside, elements, 0)] if self.span else False, elements, -1)

    def record(self) -> TensorRecord:
        return TensorRecord(
            name=self.name,
            shape=tuple(self.tensor.shape),
            dtype=str(self.tensor.dtype).removeprefix("torch."),
            itemsize=self.itemsize,
            num_elements=self.tensor.numel(),
            num_stored=int((self.stored_by >= 0).sum()),
            came_empty=self.written is not None,
        )


class Recorder:
    """Runs launches and keeps their records. Give `run` to `launch.redirected`."""

    def __init__(self, empties: EmptyTensors) -> None:
        self.records: list[KernelRecord] = []
        self.empties = empties

    def run(self, launch: Launch) -> None:
        names = launch.kernel.arg_names
        arguments = dict(zip(names, launch.arguments, strict=False))
        given = [(name, value) for name, value in arguments.items() if isinstance(value, Tensor)]
        tensors = [Argument(name, value, self.empties.of(value), place) for place, (name, value) in enumerate(given)]
        watch = Watch(tensors)
        x, y, z = (*launch.grid, 1, 1)[:3]
        with watch.watching():
            launch.kernel[launch.grid](*launch.arguments, **launch.options)
        self.records.append(
            KernelRecord(
                kernel=launch.kernel.fn.__name__.removeprefix("_"),
                grid=(x, y, z),
                constants={name: _plain(value) for name, value in launch.options.items()},
                tensors=tuple(argument.record() for argument in tensors),
                programs=tuple(ProgramRecord(id, tuple(accesses)) for id, accesses in watch.programs.items()),
                faults=tuple(watch.faults),
            )
        )


class Watch:
    """The interpreter's builder, with loads and stores that are looked at first."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = arguments
        self.programs: dict[tuple[int, int, int], list[Access]] = {}
        self.faults: list[Fault] = []
        self._seen: set[tuple[str, int, str]] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        builder = interpreter_builder
        names = ("create_masked_load", "create_masked_store", "create_load", "create_store", "create_atomic_rmw")
        originals = {name: getattr(builder, name) for name in (*names, "create_atomic_cas")}
        replacements = {
            "create_masked_load": self._masked_load,
            "create_masked_store": self._masked_store,
            "create_load": lambda pointers, *rest: self._masked_load(pointers, None, None, *rest),
            "create_store": lambda pointers, value, *rest: self._masked_store(pointers, value, None, *rest),
            "create_atomic_rmw": self._atomic_rmw,
            "create_atomic_cas": self._atomic_cas,
        }
        self.originals = originals
        for name, replacement in replacements.items():
            setattr(builder, name, replacement)
        convert, tensors = interpreter._implicit_cvt, iter(self.arguments)

        def converted(value: Any) -> Any:
            """An argument as the kernel gets it: of a tensor, a pointer to the place that was made up for it."""
            result = convert(value)
            if isinstance(value, Tensor):
                result.handle.data = np.array([next(tensors).start], dtype=np.uint64)
            return result

        interpreter._implicit_cvt = converted
        try:
            yield
        finally:
            interpreter._implicit_cvt = convert
            for name in replacements:
                delattr(builder, name)

    # What follows the operands (cache and eviction policies, whether volatile) differs from triton to triton, and is
    # handed on as it came.

    def _masked_load(self, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        pointers, allowed = self._look("load", pointers, mask)
        element_type = pointers.get_element_ty()
        if other is None:
            other = TensorHandle(np.zeros_like(pointers.data, dtype=_get_np_dtype(element_type)), element_type)
        return self.originals["create_masked_load"](pointers, allowed, other, *rest)

    def _masked_store(self, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        pointers, allowed = self._look("store", pointers, mask)
        return self.originals["create_masked_store"](pointers, value, allowed, *rest)

    def _atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._look("load", pointers, mask)
        pointers, allowed = self._look("store", pointers, mask, is_atomic=True)
        return self.originals["create_atomic_rmw"](operation, pointers, value, allowed, *rest)

    def _atomic_cas(self, pointers: Any, compared: Any, value: Any, *rest: Any) -> Any:
        self._look("load", pointers, None)
        pointers, allowed = self._look("store", pointers, None, is_atomic=True)
        if not allowed.data.all():
            raise IndexError("an atomic compare-and-swap outside of every tensor")
        return self.originals["create_atomic_cas"](pointers, compared, value, *rest)

    def _look(self, kind: str, pointers: Any, mask: Any, is_atomic: bool = False) -> tuple[TensorHandle, TensorHandle]:
        """Record an access; returns the true addresses, and which lanes may go on: those of the mask that have one."""
        addresses = np.asarray(pointers.data)
        wanted = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask.data, addresses.shape)
        program = interpreter_builder.grid_idx
        line, text = _source_line()
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        accesses = self.programs.setdefault(program, [])
        left = wanted.copy()
        true = np.zeros(addresses.shape, dtype=np.uint64)
        for argument in self.arguments:
            if not left.any():
                break
            elements = argument.elements(addresses)
            mine = left & (elements >= 0)
            if not mine.any():
                continue
            left &= ~mine
            touched = elements[mine]
            true[mine] = argument.tensor.data_ptr() + touched.astype(np.uint64) * argument.itemsize
            accesses.append(Access(kind, argument.name, line, touched.size, touched.size * itemsize, _ranges(touched)))
            if kind == "store":
                self._store(argument, elements, mine, mask, program, line, text, is_atomic)
            elif argument.written is not None:
                self._load(argument, elements, mine, mask, program, line, text)
        if left.any():
            count = int(left.sum())
            accesses.append(Access(kind, "?", line, count, count * itemsize, ()))
            self._out_of_bounds(addresses, left, mask, program, line, text)
        allowed = TensorHandle(wanted & ~left, triton.language.int1)
        return TensorHandle(true, pointers.dtype), allowed

    def _store(
        self,
        argument: Argument,
        elements: np.ndarray,
        mine: np.ndarray,
        mask: Any,
        program: tuple[int, int, int],
        line: int,
        text: str,
        is_atomic: bool,
    ) -> None:
        _, ny, nz = interpreter_builder.grid_dim
        number = (program[0] * ny + program[1]) * nz + program[2]
        before = argument.stored_by[np.where(mine, elements, 0)]
        raced = mine & (before >= 0) & (before != number)
        if raced.any() and not is_atomic:
            lane = _first(raced)
            first = int(before[lane])
            other = (first // (ny * nz), first // nz % ny, first % nz)
            self._add(
                Fault(
                    "race", program, line, text, argument.name, int(elements[lane]), argument.span, lane,
                    _held_back(mask, mine.shape), int(raced.sum()), other,
                )
            )  # fmt: skip
        stored = elements[mine]
        argument.stored_by[stored] = number
        if argument.written is not None:
            argument.written[(stored[:, None] * argument.itemsize + np.arange(argument.itemsize)).ravel()] = True

    def _load(
        self,
        argument: Argument,
        elements: np.ndarray,
        mine: np.ndarray,
        mask: Any,
        program: tuple[int, int, int],
        line: int,
        text: str,
    ) -> None:
        assert argument.written is not None
        missing = mine & ~argument.written[np.where(mine, elements, 0) * argument.itemsize]
        if missing.any():
            lane = _first(missing)
            self._add(
                Fault(
                    "never written", program, line, text, argument.name, int(elements[lane]), argument.span, lane,
                    _held_back(mask, mine.shape), int(missing.sum()),
                )
            )  # fmt: skip

    def _out_of_bounds(
        self,
        addresses: np.ndarray,
        left: np.ndarray,
        mask: Any,
        program: tuple[int, int, int],
        line: int,
        text: str,
    ) -> None:
        lane = _first(left)
        address = int(addresses[lane])
        nearest = min(self.arguments, key=lambda argument: _distance(argument, address), default=None)
        if nearest is None:
            raise IndexError(f"line {line}: {text}: the kernel was given no tensor")
        self._add(
            Fault(
                "out of bounds", program, line, text, nearest.name, (address - nearest.start) // nearest.itemsize,
                nearest.span, lane, _held_back(mask, left.shape), int(left.sum()),
            )
        )  # fmt: skip

    def _add(self, fault: Fault) -> None:
        """One of each kind, line and tensor: the first program that does it tells all."""
        key = (fault.kind, fault.line, fault.tensor)
        if key not in self._seen and len(self.faults) < MAX_FAULTS:
            self._seen.add(key)
            self.faults.append(fault)


def _held_back(mask: Any, shape: tuple[int, ...]) -> int | None:
    return None if mask is None else int((~np.broadcast_to(mask.data, shape)).sum())


def _first(lanes: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(lanes)[0])


def _distance(argument: Argument, address: int) -> int:
    end = argument.start + argument.span * argument.itemsize
    return argument.start - address if address < argument.start else max(0, address - end + 1)


def _ranges(elements: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Elements as [start, stop) ranges, each element once."""
    unique = np.unique(elements)
    breaks = np.flatnonzero(np.diff(unique) != 1)
    starts = unique[np.concatenate(([0], breaks + 1))]
    stops = unique[np.concatenate((breaks, [len(unique) - 1]))] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def _source_line() -> tuple[int, str]:
    """Line and text of the kernel that runs: the first frame that is neither ours nor Triton's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != HERE and not name.startswith(TRITON_FOLDER):
            return frame.f_lineno, linecache.getline(name, frame.f_lineno).strip()
        assert frame.f_back is not None
        frame = frame.f_back
    raise AssertionError("no kernel on the stack")


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, str)) else str(value)
