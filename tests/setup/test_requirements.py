"""pyproject.toml, constraints.txt and environment.yml ask for the same, and it can be had on every named platform."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "Linux x86-64": ("x86_64-unknown-linux-gnu", {"platform_machine": "x86_64", "sys_platform": "linux"}),
    "Linux arm64": ("aarch64-unknown-linux-gnu", {"platform_machine": "aarch64", "sys_platform": "linux"}),
    "macOS 14 arm64": ("aarch64-apple-darwin", {"platform_machine": "arm64", "sys_platform": "darwin"}),
}
OFFLINE = re.compile(r"error sending request|dns error|connect error|Connection refused|timed out|tunnel", re.I)


def project():
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def constraints():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def requirements(*extras):
    given = project()
    return [Requirement(r) for r in given["dependencies"]] + [
        Requirement(r) for extra in extras for r in given["optional-dependencies"][extra]
    ]


def environment():
    return yaml.safe_load((REPOSITORY / "environment.yml").read_text())


def test_every_requirement_is_pinned_within_its_bounds():
    pins = {pin.name: pin for pin in constraints()}
    for requirement in requirements("author", "serving", "teacher", "test"):
        if requirement.name == "triton":
            continue
        (pin,) = pins[requirement.name].specifier
        assert pin.operator == "=="
        assert pin.version in requirement.specifier, requirement


def test_every_package_that_the_code_imports_is_asked_for():
    asked = {requirement.name for requirement in requirements("serving", "teacher")}
    for file in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            for name in (name.partition(".")[0] for name in names):
                known = name in sys.stdlib_module_names or name == "servelab"
                assert known or name.lower().replace("_", "-") in asked, f"{file.name} imports {name}"


def test_pins_are_exact_and_public():
    for pin in constraints():
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert Version(specifier.version).local is None, f"{pin}: a local build cannot be had from the registry"


def test_what_torch_brings_is_not_pinned():
    assert [p.name for p in constraints() if p.name == "triton" or p.name.startswith(("nvidia-", "cuda-"))] == []


def test_triton_is_asked_for_only_where_it_exists():
    (triton,) = [r for r in requirements() if r.name == "triton"]
    wanted = {name: triton.marker.evaluate(markers) for name, (_, markers) in PLATFORMS.items()}
    assert wanted == {"Linux x86-64": True, "Linux arm64": True, "macOS 14 arm64": False}


def test_a_learner_gets_no_tool_of_authors_or_teachers():
    asked = {r.name for r in requirements()}
    extras = project()["optional-dependencies"]
    tools = {Requirement(r).name for extra in ("author", "teacher", "test") for r in extras[extra]}
    assert tools >= {"jupytext", "kaleido", "nbgrader", "pytest"}
    assert asked & tools == set()


def test_versions_stand_in_one_place():
    dependencies = environment()["dependencies"]
    (pip,) = [d["pip"] for d in dependencies if isinstance(d, dict)]
    assert pip == ["-c constraints.txt", "-e .[serving]"]
    assert [d for d in dependencies if isinstance(d, str)] == ["python >=3.11,<3.14", "pip"]


def test_the_same_pythons_everywhere():
    declared = SpecifierSet(project()["requires-python"])
    (conda,) = [d for d in environment()["dependencies"] if str(d).startswith("python ")]
    assert SpecifierSet(conda.removeprefix("python ")) == declared
    minors = [f"3.{minor}" for minor in range(8, 20)]
    assert tuple(declared.filter(minors)) == PYTHONS
    supported = re.search(r"SUPPORTED = (.*)", (REPOSITORY / "tools" / "lab.py").read_text()).group(1)
    assert re.findall(r"\((\d+), (\d+)\)", supported) == [tuple(python.split(".")) for python in PYTHONS]


def test_this_environment_has_the_tested_versions():
    """CI installs under constraints.txt: what the other tests ran with is what learners get."""
    from importlib.metadata import PackageNotFoundError, version

    names = {r.name for r in requirements("author", "teacher", "test")}
    for pin in constraints():
        if pin.name in names and (pin.marker is None or pin.marker.evaluate()):
            try:
                installed = version(pin.name)
            except PackageNotFoundError:
                pytest.fail(f"{pin.name} is not installed: run `make test`, which installs what the tests need")
            assert Version(installed).public in pin.specifier, f"{pin}: {installed} is installed"


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_constraints_resolve(python, platform, tmp_path):
    """uv reads metadata only; nothing is installed. All extras together, so each of them alone resolves too."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert uv, "uv is not installed: run `make test`, which installs what the tests need"
    triple, markers = PLATFORMS[platform]
    out = tmp_path / "resolved.txt"
    command = [uv, "pip", "compile", "pyproject.toml", "-c", "constraints.txt", "--all-extras", "--no-annotate"]
    command += ["--python-version", python, "--python-platform", triple, "--no-header", "--quiet", "-o", str(out)]
    environ = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0", "UV_PYTHON_DOWNLOADS": "never"}
    answer = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if answer.returncode and OFFLINE.search(answer.stderr) and not os.environ.get("SERVELAB_REQUIRE_NETWORK"):
        pytest.skip("the package registry cannot be reached")
    assert answer.returncode == 0, answer.stderr
    resolved = {r.name: r for r in map(Requirement, out.read_text().splitlines())}
    markers = {**markers, "python_version": python, "python_full_version": f"{python}.0"}
    for requirement in requirements():
        if requirement.marker is None or requirement.marker.evaluate(markers):
            assert requirement.name in resolved
    assert ("triton" in resolved) == (markers["sys_platform"] == "linux")
    assert str(resolved["torch"].specifier) == "==2.13.0"
