"""Every kernel compiles for every GPU that the course names, fits it, and takes what `resource-<Triton>.json` says.

Renew the table after a change of a kernel or of Triton's version, in some minutes:
``python -m tests.kernels.inspect.test_resource``.
"""

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm import tqdm

from servelab.kernels import flash_attention, paged_attention
from servelab.kernels.inspect import SHARED_LIMIT_BYTES, PagedInputs, Resources, Worker, resources
from servelab.kernels.inspect.catalog import Example, examples

TABLES = sorted(Path(__file__).parent.glob("resource-*.json"))  # one for each Triton that was measured
COLUMNS = ("kernel", "threads", "registers", "shared_bytes", "stack_bytes")
# What a compiler makes of a kernel may differ a little between machines; more registers than this is another kernel.
REGISTER_SLACK = 8
# A Triton without a table may put so many bytes of a thread on the stack.
FEW_BYTES = 32
QUICK = ("flash_attention, D 64, causal", "paged_attention, D 128, fp8_e4m3, decode", "rms_norm, N 4096")

Table = dict[str, Any]  # target -> example -> launches, each with its COLUMNS; and the Triton that says so


def examples_for(target: int) -> list[Example]:
    """float16 on the T4, which has no bfloat16; bfloat16 elsewhere."""
    return list(examples(torch.float16 if target < 80 else torch.bfloat16))


def compiled(example: Example, target: int, worker: Worker) -> list[Resources]:
    return resources(example.operator, *example.arguments, target=target, worker=worker, **example.options)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Worker]:
    worker = Worker("compile")
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def recorded() -> Table | None:
    """The table of the installed Triton, if it has one."""
    path = path_of_table()
    return read(path) if path in TABLES else None


@pytest.fixture(params=TABLES, ids=lambda path: path.stem)
def table(request) -> Table:
    return read(request.param)


def path_of_table() -> Path:
    return Path(__file__).with_name(f"resource-{importlib.metadata.version('triton')}.json")


def read(path: Path) -> Table:
    found: Table = json.loads(path.read_text(encoding="utf-8"))
    return found


def may_spill(target: int, name: str) -> bool:
    """No kernel does from sm_80 on, up to head dim 128."""
    return target < 80 or "D 256" in name


def launches(table: Table) -> Iterator[tuple[int, str, Resources]]:
    for target in SHARED_LIMIT_BYTES:
        for name, entries in table[f"sm_{target}"].items():
            for entry in entries:
                yield target, name, Resources(target=target, **dict(zip(COLUMNS, entry, strict=True)))


def test_the_table_has_every_kernel_for_every_target(table):
    assert list(table) == ["triton", *(f"sm_{target}" for target in SHARED_LIMIT_BYTES)]
    for target in SHARED_LIMIT_BYTES:
        assert list(table[f"sm_{target}"]) == [example.name for example in examples_for(target)]


def test_everything_fits(table):
    assert [row for row in launches(table) if not row[2].fits or row[2].registers > 255] == []


def test_from_sm_80_on_nothing_spills_up_to_head_dim_128(table):
    assert [row for row in launches(table) if row[2].stack_bytes and not may_spill(row[0], row[1])] == []


def assert_as_recorded(example: Example, target: int, compiler: Worker, recorded: Table | None) -> None:
    """The Triton of a table still says what is in it. One without may use other registers, and fits too."""
    rows = compiled(example, target, compiler)
    if recorded is None:
        assert all(row.fits and row.registers <= 255 for row in rows), (target, example.name)
        few = all(row.stack_bytes <= FEW_BYTES for row in rows)
        assert few or may_spill(target, example.name), (target, example.name, rows)
        return
    before = [dict(zip(COLUMNS, entry, strict=True)) for entry in recorded[f"sm_{target}"][example.name]]
    assert [row.kernel for row in rows] == [was["kernel"] for was in before]
    for row, was in zip(rows, before, strict=True):
        assert row.fits, (target, example.name)
        assert row.target == target
        assert row.threads == was["threads"], (target, example.name)
        assert abs(row.registers - was["registers"]) <= REGISTER_SLACK, (target, example.name, row)
        assert row.stack_bytes == was["stack_bytes"], (target, example.name, row)


@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_the_compiler_says_so_of_one_of_each_kind(compiler, recorded, target):
    """Attention, quantized decode, and a kernel without tiles; all of them in `test_the_compiler_says_so`."""
    chosen = [example for example in examples_for(target) if example.name in QUICK]
    assert len(chosen) == len(QUICK)
    for example in chosen:
        assert_as_recorded(example, target, compiler, recorded)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_the_compiler_says_so(compiler, recorded, target):
    for example in examples_for(target):
        assert_as_recorded(example, target, compiler, recorded)


@pytest.mark.slow
@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_float32_and_other_head_dims_fit_too(compiler, target):
    for head_dim, dtype in ((59, torch.float16), (96, torch.float16), (64, torch.float32), (256, torch.float32)):
        q = torch.zeros(20, 4, head_dim, dtype=dtype)
        (row,) = resources(flash_attention, q, q[:, :2], q[:, :2], target=target, worker=compiler)
        assert row.fits, (head_dim, dtype)
        inputs = PagedInputs([64], heads=(4, 2), head_dim=head_dim, queries=64, dtype=dtype)
        arguments, options = inputs.arguments, {**inputs.options, "num_splits": 1}
        (row,) = resources(paged_attention, *arguments, target=target, worker=compiler, **options)
        assert row.fits, (head_dim, dtype)


def test_a_target_that_the_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"a target in \(75, 80, 89, 90, 100, 120\), got 70"):
        resources(flash_attention, target=70)


def test_names_are_told_apart():
    names = [example.name for example in examples(torch.float16)]
    assert len(set(names)) == len(names)


def renew() -> None:
    worker, blocks = Worker("compile"), [f' "triton": "{importlib.metadata.version("triton")}"']
    for target in SHARED_LIMIT_BYTES:
        lines = []
        for example in tqdm(examples_for(target), desc=f"sm_{target}"):
            found = [[getattr(row, column) for column in COLUMNS] for row in compiled(example, target, worker)]
            lines.append(f"  {json.dumps(example.name)}: {json.dumps(found)}")
        blocks.append(f' "sm_{target}": {{\n' + ",\n".join(lines) + "\n }")
    path_of_table().write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
