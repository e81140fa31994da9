"""Build the solved, executed notebooks from their sources.

    python notebooks/build.py            # every chapter whose source changed
    python notebooks/build.py 02         # one chapter
    python notebooks/build.py --check    # nothing is executed: are they fresh, in form, complete, small?

`source/NN_slug.py` (percent format) is what people edit; `NN_slug.ipynb` is generated, outputs kept, so that GitHub
shows it and the tests compare its self-tests. Needs `pip install -e .[author,test]`; `--check` needs nbformat alone.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from form import tags, violations
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parent
RECORDS = NOTEBOOKS.parent / "src" / "servelab" / "course" / "static" / "kernel"  # see `servelab.course.watched`
BUDGET_SECONDS = 90
MAX_NOTEBOOK_BYTES = 1_500_000
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PICTURES = ("image/png", "image/svg+xml", "text/html", "text/markdown")
EMBEDDED = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=]+")
OBJECT_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")


class BuildError(Exception):
    """A chapter that cannot be published; the message says which cell and why."""


def sources(folder: Path) -> list[Path]:
    return sorted((folder / "source").glob("[0-9][0-9]_*.py"))


def notebook_path(source: Path) -> Path:
    return source.parent.parent / f"{source.stem}.ipynb"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cell_key(cell: NotebookNode) -> list[object]:
    return [cell.cell_type, cell.id, sorted(tags(cell)), cell.source]


def cells_sha256(notebook: NotebookNode) -> str:
    """What the source says and execution leaves alone: type, id, tags and text of each cell."""
    cells = [cell_key(cell) for cell in notebook.cells]
    return sha256(json.dumps(cells, ensure_ascii=False).encode())


def read_source(source: Path) -> NotebookNode:
    """The notebook that a percent-format source describes, without outputs. Ids: the cell's own, or a hash of its text.

    Raises BuildError for an id that is not letters, digits and hyphens, or that is used twice.
    """
    import jupytext

    read = jupytext.read(source, fmt="py:percent")
    cells: list[NotebookNode] = []
    used: set[str] = set()
    for cell in read.cells:
        given = cell.metadata.get("id")
        identifier = given or f"{cell.cell_type}-{sha256(cell.source.encode())[:8]}"
        if given is None:
            identifier = next(name for name in _numbered(identifier) if name not in used)
        elif given in used or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", given):
            raise BuildError(f"{source.name}: cell id {given!r} is used twice, or is not letters, digits and hyphens")
        used.add(identifier)
        metadata = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
        make = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        cells.append(make(cell.source, id=identifier, metadata=metadata))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in range(2, 10_000):
        yield f"{name}-{number}"


def environment(data: Path, *, solved: bool) -> dict[str, str]:
    """The variables a chapter is executed under: offline, and nothing of the author's own progress."""
    values = {name: value for name, value in os.environ.items() if name != "SERVELAB_EDITION"}
    values.update(SERVELAB_DATA=str(data), HF_HUB_OFFLINE="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    if solved:
        values.update(SERVELAB_EDITION="solved", SERVELAB_KEEP_RECORDS=str(RECORDS))
    else:  # tests run beside each other: threads that wait must not take the other's core
        values.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return values


def execute(
    notebook: NotebookNode,
    *,
    folder: Path,
    solved: bool = True,
    cell_timeout_seconds: int = 120,
    on_cell: Callable[[int, NotebookNode], None] | None = None,
) -> float:
    """Run every cell in place, in a new kernel with an empty data folder; returns seconds, kernel start included.

    Raises nbclient's CellExecutionError when a cell raises, CellTimeoutError when one takes too long.
    """
    from nbclient import NotebookClient

    def started(cell: NotebookNode, cell_index: int) -> None:
        if on_cell is not None:
            on_cell(cell_index, cell)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="servelab-data-", ignore_cleanup_errors=True) as data:
        client = NotebookClient(
            notebook,
            timeout=cell_timeout_seconds,
            kernel_name="python3",
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],  # no word about TCP from each kernel
            resources={"metadata": {"path": str(folder)}},
            on_cell_start=started,
        )
        client.execute(env=environment(Path(data), solved=solved))
    return time.perf_counter() - start


def publish(notebook: NotebookNode, private: tuple[str, ...] = ()) -> None:
    """Make an executed notebook fit to be kept: live widgets give way to their pictures, no state, no timing.

    Raises BuildError on a warning, a widget without a picture, an object's address, or a `private` folder in an output.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            bundle = output.get("data", {})
            if WIDGET_VIEW in bundle:
                if not any(kind in bundle for kind in PICTURES):
                    raise BuildError(f"cell {cell.id} displays a widget without a picture; use show(...)")
                del bundle[WIDGET_VIEW]
            if output.output_type == "stream" and output.name == "stderr" and "stderr-ok" not in tags(cell):
                raise BuildError(f"cell {cell.id} writes to stderr: {output.text.strip()[:500]}")
            text = output_text(output)
            if address := OBJECT_ADDRESS.search(text):
                raise BuildError(f"cell {cell.id} shows an object's address ({address[0]}), new in every run")
            for folder in private:
                if folder in text:
                    raise BuildError(f"cell {cell.id} shows a folder of this machine: {folder}")


def output_text(output: NotebookNode) -> str:
    """All text of one output, pictures left out, also those embedded in HTML."""
    bundle = output.get("data", {})
    parts = [output.get("text", "")] + [str(value) for kind, value in bundle.items() if not kind.startswith("image/")]
    return EMBEDDED.sub("", "\n".join("".join(part) for part in parts))


def private_folders() -> tuple[str, ...]:
    """Folders whose names must not get into a published notebook."""
    homes = {str(NOTEBOOKS.parent), str(Path.home()), tempfile.gettempdir() + os.sep}
    return tuple(sorted(folder for folder in homes if len(folder) > 2))


def build(source: Path, *, draft: bool = False, report: Callable[[str], None] = print) -> Path:
    """Execute one source and write its notebook beside the `source` folder; returns the notebook's path.

    Nothing is written when the chapter breaks a rule. With `draft`, form and time budget are reported and forgiven.
    """
    source_sha256 = sha256(source.read_bytes())  # before executing: who edits meanwhile has to build again
    notebook = read_source(source)
    faults = violations(notebook, source.stem[:2])
    if faults and not draft:
        raise BuildError("\n  ".join([f"{source.name} breaks the form of a chapter:", *faults]))
    fingerprint = cells_sha256(notebook)
    folder = source.parent.parent
    total = len(notebook.cells)
    progress = _Progress(source.stem, total)
    cell_timeout_seconds = 600 if draft else 120
    seconds = execute(notebook, folder=folder, cell_timeout_seconds=cell_timeout_seconds, on_cell=progress.started)
    publish(notebook, private_folders())
    if cells_sha256(notebook) != fingerprint:
        raise BuildError(f"{source.name}: executing the notebook changed its cells")
    notebook.metadata["servelab"] = {
        "source_sha256": source_sha256,
        "cells_sha256": fingerprint,
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    text = nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"
    if len(text.encode()) > MAX_NOTEBOOK_BYTES:
        raise BuildError(f"{source.name}: {len(text.encode()):,} bytes, at most {MAX_NOTEBOOK_BYTES:,}")
    if seconds > BUDGET_SECONDS:
        late = f"{source.name} took {seconds:.0f} s, the budget is {BUDGET_SECONDS} s"
        if not draft:
            raise BuildError(late)
        faults = [*faults, late]
    nbformat.validate(notebook)
    path = notebook_path(source)
    partial = path.with_suffix(".ipynb.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    for fault in faults:
        report(f"  draft: {fault}")
    size = f"{len(text.encode()) / 1000:,.0f} kB"
    report(f"{path.name}: {total} cells, {seconds:.1f} s of {BUDGET_SECONDS} s ({progress.slowest()}), {size}")
    return path


class _Progress:
    """Shows on a terminal which cell runs, and knows afterwards which took longest."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.starts: list[tuple[float, str]] = []

    def started(self, index: int, cell: NotebookNode) -> None:
        self.starts.append((time.perf_counter(), cell.id))
        if sys.stderr.isatty():
            line = f"{self.name}: cell {index + 1} of {self.total} ({cell.id})"
            print(f"\r{line:<79}", end="\r", file=sys.stderr, flush=True)

    def slowest(self, number: int = 3) -> str:
        """Names and seconds of the cells that took longest; to be called when the last one has ended."""
        ended = [*self.starts[1:], (time.perf_counter(), "")]
        took = sorted(
            ((end - start, name) for (start, name), (end, _) in zip(self.starts, ended, strict=False)), reverse=True
        )
        return ", ".join(f"{name} {seconds:.1f}" for seconds, name in took[:number])


def machine() -> str:
    from servelab.device import machine_name

    return str(machine_name())


def problems(source: Path) -> list[str]:
    """Why the notebook of `source` cannot be published as it is; empty when it is fresh, complete and in form."""
    path = notebook_path(source)
    if not path.exists():
        return [f"{path.name} has not been built"]
    try:
        notebook = nbformat.read(path, as_version=4)
    except (ValueError, nbformat.reader.NotJSONError) as error:
        return [f"{path.name} cannot be read: {str(error)[:200]}"]
    record = notebook.metadata.get("servelab", {})
    found = []
    if record.get("source_sha256") != sha256(source.read_bytes()):
        found.append(f"{source.name} changed since {path.name} was built")
    if record.get("cells_sha256") != cells_sha256(notebook):
        found.append(f"{path.name} was edited by hand; edit source/{source.name}")
    found += [f"{path.name}: {fault}" for fault in violations(notebook, source.stem[:2])]
    found += [f"{path.name}: {fault}" for fault in output_faults(notebook)]
    if (size := path.stat().st_size) > MAX_NOTEBOOK_BYTES:
        found.append(f"{path.name}: {size:,} bytes, at most {MAX_NOTEBOOK_BYTES:,}")
    return found


def output_faults(notebook: NotebookNode) -> list[str]:
    """What is wrong with the outputs that a built notebook holds."""
    found = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(cell.outputs for cell in code):
        found.append("no cell has an output")
    if "widgets" in notebook.metadata:
        found.append("it holds widget state")
    last = 0
    for cell in code:
        if not cell.source.strip():
            continue
        if cell.execution_count != last + 1:
            found.append(f"cell {cell.id} was not run in its turn (execution count {cell.execution_count})")
        last = cell.execution_count or last
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"cell {cell.id} raised {output.ename}")
            if WIDGET_VIEW in output.get("data", {}):
                found.append(f"cell {cell.id} holds a live widget, which is dead without a kernel")
    return found


def differences(source: Path) -> list[str]:
    """Where the notebook is not what jupytext reads from `source`, cell by cell; `problems` does without jupytext."""
    wanted, built = read_source(source), nbformat.read(notebook_path(source), as_version=4)
    pairs = zip(wanted.cells, built.cells, strict=False)
    found = [f"cell {a.id} differs from its source" for a, b in pairs if cell_key(a) != cell_key(b)]
    if len(wanted.cells) != len(built.cells):
        found.append(f"{len(built.cells)} cells, its source has {len(wanted.cells)}")
    return found


def orphans(folder: Path) -> list[str]:
    """Notebooks that no source makes."""
    made = {notebook_path(source).name for source in sources(folder)}
    return [f"{path.name} has no source" for path in sorted(folder.glob("*.ipynb")) if path.name not in made]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources, executed.")
    parser.add_argument("chapters", nargs="*", help="chapter numbers or names, such as 02; all when none is given")
    parser.add_argument(
        "--check", action="store_true", help="execute nothing; fail when a notebook is stale or out of form"
    )
    parser.add_argument("--force", action="store_true", help="build even what has not changed")
    parser.add_argument("--draft", action="store_true", help="report form and time budget, but do not fail on them")
    options = parser.parse_args(arguments)
    wanted = tuple(options.chapters)
    chosen = [source for source in sources(NOTEBOOKS) if not wanted or source.stem.startswith(wanted)]
    if not chosen:
        print(f"No source for {', '.join(wanted) or 'any chapter'} in {NOTEBOOKS / 'source'}", file=sys.stderr)
        return 1
    if options.check:
        found = [problem for source in chosen for problem in problems(source)] + orphans(NOTEBOOKS)
        print("\n".join(found) if found else f"{len(chosen)} notebooks are fresh and keep the form")
        return 1 if found else 0
    failed = False
    for source in chosen:
        if not options.force and not problems(source):
            print(f"{notebook_path(source).name}: unchanged")
            continue
        try:
            build(source, draft=options.draft)
        except Exception as error:  # one chapter that fails does not keep the others from being built
            failed = True
            print(f"{source.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
