"""Environments beside the course's, in which tools live that ask for other versions than the course."""

import os
from pathlib import Path

import servelab
from servelab.translation import _


class EnvironmentMissing(Exception):
    """One sentence: which tool has no environment, and the command that makes it."""


def find_python(folder: str, tool: str, target: str) -> Path:
    """The Python of an environment such as `.venv-vllm`: in the current folder, above it, or where the course lies.

    tool: as people write it. target: of `make`. Raises EnvironmentMissing.
    """
    places = [Path.cwd(), *Path.cwd().parents, Path(servelab.__file__).parents[2]]
    inside = Path("Scripts/python.exe") if os.name == "nt" else Path("bin/python")
    for place in places:
        python = place / folder / inside
        if python.exists():
            return python
    sentence = _("{tool} has no environment yet: run `make {target}` in the folder of the course.")
    raise EnvironmentMissing(sentence.format(tool=tool, target=target))
