"""The imports of the package are the arrows of CONTRIBUTING.md's table, and its files keep to the house's form."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "servelab"
FREE = "translation"  # every room may import it
DRAWERS = {"utils", "util", "common", "misc", "helpers", "helper"}
OUTSIDE = {"notebooks", "labs", "tests", "benchmarks", "instructor", "tools"}
MOST_LINES = 400


def read_table(text):
    """Return room -> the rooms it may import, from the table under "Rooms" of CONTRIBUTING.md."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", text, re.M)
    table = {}
    for room, allowed in rows:
        table[room] = set(table) if allowed == "everything above" else set(re.findall(r"`(\w+)`", allowed))
        assert table[room] or allowed == "nothing", f"{room}: {allowed!r} is not a list of rooms"
    return table


def rooms(package):
    return {p.stem for p in package.iterdir() if (p.is_dir() or p.suffix == ".py") and not p.name.startswith("_")} - {
        "locale"
    }


def room_of(path, package):
    return path.relative_to(package).parts[0].removesuffix(".py")


def imported(tree, path, package):
    """Yield (line, dotted name) of everything imported, lazily or for types only, by statement or by literal name."""
    here = ["servelab", *path.relative_to(package).with_suffix("").parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def bad_arrows(package, table):
    """Return one sentence for each import that the table does not have."""
    known, found = rooms(package), []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        if room == "__init__":
            allowed = set()
        elif room in table:
            allowed = table[room] | {room, FREE}
        else:
            found.append(f"{path.name}: the room {room} is not in the table")
            continue
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), path, package):
            first, *rest = name.split(".")
            target = rest[0] if first == "servelab" and rest else None
            if target in known and target not in allowed:
                found.append(f"{path.relative_to(package)}:{line} {room} imports {target}")
            if first in OUTSIDE:
                found.append(f"{path.relative_to(package)}:{line} imports {first}")
    return found


@pytest.fixture(scope="module")
def table():
    return read_table((REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_every_room_has_a_row_and_every_row_a_room(table):
    assert set(table) == rooms(PACKAGE)


def test_every_arrow_is_in_the_table(table):
    assert bad_arrows(PACKAGE, table) == []


def test_the_table_has_no_circle(table):
    """A room comes after all that it imports, so the table can be read from the top."""
    order = list(table)
    for room, allowed in table.items():
        assert all(order.index(other) < order.index(room) for other in allowed), room


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from servelab.engine import Engine", "costs imports engine"),
        ("import servelab.engine.scheduler", "costs imports engine"),
        ("from servelab import engine", "costs imports engine"),
        ("from ..engine import Engine", "costs imports engine"),
        ("def late():\n    from servelab.engine import Engine", "costs imports engine"),
        ("import importlib\nimportlib.import_module('servelab.engine')", "costs imports engine"),
        ("from notebooks.build import main", "imports notebooks"),
        ("import tests.conftest", "imports tests"),
    ],
)
def test_a_planted_bad_arrow_is_caught(tmp_path, source, complaint):
    for room in ("costs", "engine"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    (tmp_path / "costs" / "planted.py").write_text(source + "\n")
    (found,) = bad_arrows(tmp_path, {"costs": set(), "engine": {"costs"}})
    assert complaint in found


def test_allowed_arrows_are_not_caught(tmp_path):
    for room in ("costs", "engine"):
        (tmp_path / room).mkdir()
    (tmp_path / "translation.py").touch()
    (tmp_path / "engine" / "planted.py").write_text(
        "from servelab.costs import table\nfrom servelab.engine import other\nfrom servelab.translation import _\n"
        "from servelab import __version__\nimport torch\n"
    )
    table = {"translation": set(), "costs": set(), "engine": {"costs"}}
    assert bad_arrows(tmp_path, table) == []
    assert bad_arrows(tmp_path, {"translation": set(), "costs": set()}) == [
        "planted.py: the room engine is not in the table"
    ]


def test_a_table_with_a_row_that_names_no_room_is_caught():
    with pytest.raises(AssertionError, match="is not a list of rooms"):
        read_table("| `costs` | arithmetic | whatever |")


def test_no_file_is_a_drawer_and_none_is_too_long():
    for path in PACKAGE.rglob("*.py"):
        assert path.stem not in DRAWERS, f"{path}: name it for what it holds"
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, f"{path}: split it by what it does"


@pytest.mark.parametrize("module", ["servelab", "servelab.cli", "servelab.costs", "servelab.trace", "servelab.device"])
def test_torch_is_not_loaded_by(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'plotly') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["servelab.figures", "servelab.widgets", "servelab.course"])
def test_a_learner_waits_for_torch_only_where_a_model_runs(module):
    code = f"import sys, {module}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_tests_mirror_the_package():
    """A room without a folder of tests has not been tested."""
    tested = {p.name for p in (REPOSITORY / "tests").iterdir() if p.is_dir()}
    assert rooms(PACKAGE) - {FREE} <= tested
