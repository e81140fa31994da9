"""The room's front door: quick to open, and complete."""

import subprocess
import sys

import pytest

import servelab.course

NAMES = [
    "check",
    "hint",
    "predict",
    "reveal",
    "quiz",
    "own_words",
    "goals",
    "progress",
    "readiness",
    "show",
    "source",
    "machine",
    "glossary",
    "watched",
    "on_gpu",
]


def test_everything_a_notebook_imports_is_there_and_stays_a_function():
    assert sorted(servelab.course.__all__) == sorted(NAMES)
    for _ in range(2):  # importing a name imports its module, which must not take the name's place
        for name in NAMES:
            assert type(getattr(servelab.course, name)).__name__ == "function", name
    assert set(NAMES) <= set(dir(servelab.course))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        _ = servelab.course.chek


def test_importing_the_course_loads_no_torch_and_no_widgets():
    code = (
        "import sys; from servelab.course import check, hint\n"
        "heavy = {'torch', 'ipywidgets', 'plotly', 'IPython', 'transformers'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stderr.strip(), done.returncode) == ("", 0)


def test_the_machine_is_one_line():
    from servelab.course import machine

    assert "\n" not in machine()
    assert machine().rpartition(", ")[2] in ("float32", "bfloat16", "float16")
