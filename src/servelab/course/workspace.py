"""The learner's copy of the notebooks: made once, brought up to date, never overwritten.

`learner_edition` turns a solved notebook into the one a learner starts from. `sync` puts those editions into
`workspace/` and remembers what it wrote there, so that a later version replaces only what the learner left alone:

- not there: added (deleting a notebook is how a learner starts it afresh)
- as we wrote it: replaced
- run, but no cell changed: replaced, and the outputs kept beside it in `NAME.before-YYYY-MM-DD.ipynb`
- a cell changed: left alone, and the new version put beside it, once, as `NAME.new.ipynb`

Knows notebooks and files only: no engine, no jupytext, no torch.
"""

import datetime
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from servelab.translation import _

STATE_FILE = ".servelab.json"
STATE_VERSION = 1
BEGIN = re.compile(r"^(?P<indent>[ \t]*)### BEGIN SOLUTION[ \t]*(?P<task>.*?)[ \t]*$")
END = re.compile(r"^[ \t]*### END SOLUTION[ \t]*$")
STUB = re.compile(r"^[ \t]*### STUB:[ ]?(?P<code>.*)$")
SOLVED_ONLY = "solved-only"
FOR_TESTS = re.compile(r"^# NBVAL_CHECK_OUTPUT[ \t]*\n", re.M)  # tells the course's own tests to compare an output


@dataclass(frozen=True)
class SyncReport:
    """What one `sync` did. Names are relative to the workspace, such as `02_paged_attention.ipynb`.

    `added` are new, `updated` were replaced by a new version, `kept` were left as they are. `conflicts` have changes of
    the learner's and a new version of ours: each maps the learner's notebook to where the new version is. `backups`
    maps an updated notebook to where the learner's outputs are kept.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    backups: dict[str, str] = field(default_factory=dict)


def learner_edition(notebook: NotebookNode | Path | str) -> NotebookNode:
    """The notebook a learner starts from: solutions replaced by stubs, nothing run, `solved-only` cells left out.

    The line that tells the course's own tests to compare a cell's output is left out too.
    What stands between `### BEGIN SOLUTION 01.kv-bytes` and `### END SOLUTION` becomes its `### STUB: ...` lines, or,
    where it has none, `raise NotImplementedError("Task 01.kv-bytes: ...")`, indented like the marker. The argument is
    not changed. Raises ValueError when markers do not pair up, or when a solution at the top level, where a raise would
    stop Run All, has no stub.
    """
    solved = _read(Path(notebook)) if isinstance(notebook, Path | str) else notebook
    cells = []
    for cell in solved.cells:
        if SOLVED_ONLY in cell.metadata.get("tags", []):
            continue
        metadata = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
        make = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        source = FOR_TESTS.sub("", _stubbed(cell.source, cell.id)) if cell.cell_type == "code" else cell.source
        cells.append(make(source, id=cell.id, metadata=metadata))
    kept = {key: solved.metadata[key] for key in ("kernelspec", "language_info") if key in solved.metadata}
    learner: NotebookNode = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=cells, metadata={**kept, "servelab": {"edition": "learner"}}
    )
    return learner


def _read(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def _stubbed(source: str, cell_id: str) -> str:
    kept: list[str] = []
    stub: list[str] = []
    opened: re.Match[str] | None = None
    for line in source.split("\n"):
        if begin := BEGIN.match(line):
            if opened:
                raise ValueError(f"cell {cell_id}: expected ### END SOLUTION, got a second ### BEGIN SOLUTION")
            opened, stub = begin, []
        elif END.match(line):
            if not opened:
                raise ValueError(f"cell {cell_id}: expected ### BEGIN SOLUTION before ### END SOLUTION, got none")
            kept += [(opened["indent"] + code).rstrip() for code in stub] or [_raise(opened, cell_id)]
            opened = None
        elif opened:
            if given := STUB.match(line):
                stub.append(given["code"])
        elif STUB.match(line):
            raise ValueError(f"cell {cell_id}: expected ### STUB inside a solution, got one outside")
        else:
            kept.append(line)
    if opened:
        raise ValueError(f"cell {cell_id}: expected ### END SOLUTION, got the end of the cell")
    return "\n".join(kept)


def _raise(begin: re.Match[str], cell_id: str) -> str:
    if not begin["indent"]:
        raise ValueError(f"cell {cell_id}: expected a ### STUB line in a solution at the top level, got none")
    task = begin["task"]
    message = _("Task {task}: write this part").format(task=task) if task else _("Write this part")
    return f"{begin['indent']}raise NotImplementedError({json.dumps(message, ensure_ascii=False)})"


def sync(root: Path | str, workspace: Path | str | None = None) -> SyncReport:
    """Bring `workspace` (default: `root/workspace`) up to date with the notebooks of the course at `root`.

    Takes the learner's edition of `root/notebooks/NN_slug.ipynb`, and `root/labs/NN_slug/NN_slug.ipynb`, which is the
    learner's already, as `workspace/labs/NN_slug.ipynb`. Nothing a learner wrote or ran is lost, whatever state the
    folder is in: with a state file that cannot be read, each notebook that differs counts as the learner's. Each file
    is written whole or not at all.
    Raises ValueError when `root` has no notebooks; OSError when the folder cannot be written.
    """
    root = Path(root)
    folder = root / "workspace" if workspace is None else Path(workspace)
    editions = dict(_editions(root))
    if not editions:
        raise ValueError(f"expected notebooks in {root / 'notebooks'}, got none")
    folder.mkdir(parents=True, exist_ok=True)
    state = _State.load(folder / STATE_FILE)
    report = SyncReport()
    for name, edition in editions.items():
        _sync_one(folder, name, edition, state, report)
        state.save()
    return report


def _editions(root: Path) -> Iterator[tuple[str, NotebookNode]]:
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        yield path.name, learner_edition(path)
    for path in sorted((root / "labs").glob("[0-9][0-9]_*/*.ipynb")):
        if path.stem == path.parent.name:
            yield f"labs/{path.name}", _read(path)


def _sync_one(folder: Path, name: str, edition: NotebookNode, state: "_State", report: SyncReport) -> None:
    path, new = folder / name, _cells_sha256(edition)
    if not path.exists():
        state.written(name, new, _write(path, edition))
        report.added.append(name)
        return
    content = path.read_bytes()
    current, known = _cells_sha256_of(content), state.files.get(name, {})
    if current == new:  # also a learner who put the new version in place by hand
        if known.get("cells") != new:
            state.written(name, new, "")
        report.kept.append(name)
    elif current is not None and current == known.get("cells"):
        if hashlib.sha256(content).hexdigest() != known.get("file"):
            backup = _unused(path, f"before-{datetime.date.today().isoformat()}")
            _write_bytes(backup, content)
            report.backups[name] = backup.relative_to(folder).as_posix()
        state.written(name, new, _write(path, edition))
        report.updated.append(name)
    elif new in (known.get("cells"), known.get("offered")):  # nothing new since the learner got it, or was offered it
        report.kept.append(name)
    else:
        beside = _place_for_new(path, known)
        file_sha256 = _write(beside, edition)
        report.conflicts[name] = beside.relative_to(folder).as_posix()
        state.offered(name, new, beside.name, file_sha256)


def _place_for_new(path: Path, known: dict[str, str]) -> Path:
    """Where a new version goes: over an earlier offer that nobody touched, else under a name that is free."""
    earlier = path.with_name(known["offered_name"]) if "offered_name" in known else None
    if earlier and earlier.exists() and hashlib.sha256(earlier.read_bytes()).hexdigest() == known.get("offered_file"):
        return earlier
    return _unused(path, "new")


def _unused(path: Path, label: str) -> Path:
    candidate, number = path.with_name(f"{path.stem}.{label}.ipynb"), 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}.{label}-{number}.ipynb")
    return candidate


def _cells_sha256(notebook: NotebookNode) -> str:
    """What a learner can change by typing. Outputs, counts and metadata are left out: running is not editing.

    Blank cells too: Shift-Enter in the last cell makes one.
    """
    cells = [[cell["cell_type"], _text(cell["source"])] for cell in notebook["cells"]]
    cells = [cell for cell in cells if cell[1].strip()]
    return hashlib.sha256(json.dumps(cells, ensure_ascii=False).encode()).hexdigest()


def _cells_sha256_of(content: bytes) -> str | None:
    """The same for the bytes of a file; None when they are no notebook, which then counts as edited."""
    try:
        return _cells_sha256(json.loads(content.decode("utf-8")))
    except (ValueError, KeyError, TypeError):
        return None


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _write(path: Path, notebook: NotebookNode) -> str:
    text: str = nbformat.writes(notebook, version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    content = (text + "\n").encode()
    _write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def _write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).chmod(0o644)  # mkstemp makes files that only their owner can read
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


@dataclass
class _State:
    """What we wrote into the workspace: for each notebook the hashes of its cells and bytes, and of an offer."""

    path: Path
    files: dict[str, dict[str, str]]

    @classmethod
    def load(cls, path: Path) -> "_State":
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            files = content["files"] if content["version"] == STATE_VERSION else {}
            return cls(path, {name: {key: str(value) for key, value in entry.items()} for name, entry in files.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path, {})

    def save(self) -> None:
        content = {"version": STATE_VERSION, "files": self.files}
        _write_bytes(self.path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())

    def written(self, name: str, cells: str, file: str) -> None:
        self.files[name] = {"cells": cells, "file": file}

    def offered(self, name: str, cells: str, offered_name: str, file: str) -> None:
        offer = {"offered": cells, "offered_name": offered_name, "offered_file": file}
        self.files[name] = {**self.files.get(name, {}), **offer}
