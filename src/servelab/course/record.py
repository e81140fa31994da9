"""What a learner has done, in one JSON file in their data folder: predictions, checks, quizzes, words, the seed.

The file is written whole or not at all. One that cannot be read is moved aside and the learner is told. When the
folder cannot be written, what is done is kept until the kernel ends, and the learner is told once.
While the author builds the solved edition (``SERVELAB_EDITION=solved``) nothing is read and nothing is written.
"""

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from servelab.translation import _

VERSION = 1
SECTIONS = ("predictions", "checks", "quizzes", "words", "readiness")


def solved_edition() -> bool:
    """Whether the author is building the solved edition."""
    return os.environ.get("SERVELAB_EDITION") == "solved"


def data_folder() -> Path:
    """Return the learner's data folder: ``SERVELAB_DATA``, or the platform's."""
    chosen = os.environ.get("SERVELAB_DATA")
    if chosen:
        return Path(chosen)
    from platformdirs import user_data_dir

    return Path(user_data_dir("servelab"))


def now() -> str:
    """Return the local time as ISO 8601, to the second, with its offset."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


class Record:
    """The learner's file. `path` None keeps everything in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory: dict[str, Any] = {}
        self._told = False

    def read(self) -> dict[str, Any]:
        """Return all of it: version, seed, and a dict for each of `SECTIONS`."""
        return self._complete(self._load())

    def entry(self, section: str, key: str) -> dict[str, Any] | None:
        """Return one entry, or None."""
        found = self.read()[section].get(key)
        return found if isinstance(found, dict) else None

    def update(self, section: str, key: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Let `change` alter the entry `key` (empty if new), save, and return the entry."""
        with self._lock():
            data = self.read()
            entry: dict[str, Any] = data[section].setdefault(key, {})
            change(entry)
            self._save(data)
        return entry

    def replace(self, section: str, key: str, entry: dict[str, Any]) -> None:
        """Save `entry` in place of what was there."""

        def change(old: dict[str, Any]) -> None:
            old.clear()
            old.update(entry)

        self.update(section, key, change)

    @property
    def seed(self) -> int:
        """The learner's seed: ``SERVELAB_SEED``, else the one in the file, drawn at first use; 0 when solved."""
        chosen = os.environ.get("SERVELAB_SEED")
        if chosen:
            if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", chosen):
                raise ValueError(_("expected SERVELAB_SEED as an integer, got {chosen!r}").format(chosen=chosen))
            return int(chosen)
        if self.path is None:
            return 0
        data = self.read()
        if "seed" not in data:
            with self._lock():
                data = self.read()
                data.setdefault("seed", secrets.randbelow(2**31))
                self._save(data)
        seed: int = data["seed"]
        return seed

    def _complete(self, data: dict[str, Any]) -> dict[str, Any]:
        data.setdefault("version", VERSION)
        for section in SECTIONS:
            found = data.get(section)
            entries = found.items() if isinstance(found, dict) else ()
            data[section] = {key: entry for key, entry in entries if isinstance(entry, dict)}
        if type(data.get("seed", 0)) is not int:
            del data["seed"]
        return data

    def _load(self) -> dict[str, Any]:
        if self.path is None or self._memory:
            return self._memory
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._tell(error)
            return self._memory
        except (ValueError, RecursionError):
            return self._move_aside(self.path)
        return data if isinstance(data, dict) else self._move_aside(self.path)

    def _move_aside(self, path: Path) -> dict[str, Any]:
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with suppress(OSError):
            path.replace(aside)
        print(
            _("Your progress file could not be read. It is now {aside}; a new one is begun.").format(aside=aside.name)
        )
        return {}

    def _save(self, data: dict[str, Any]) -> None:
        if self.path is None or self._memory:
            self._memory = data
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, prefix=self.path.name, suffix=".part", delete=False
            ) as file:
                json.dump(data, file, ensure_ascii=False, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)
        except OSError as error:
            self._memory = data
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            print(
                _("Your progress cannot be saved ({reason}): it is kept until this notebook's kernel stops.").format(
                    reason=error.strerror or type(error).__name__
                )
            )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep two notebooks from overwriting each other's entries, where the system has file locks."""
        try:
            import fcntl

            assert self.path is not None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_suffix(".lock").open("w")
        except (ImportError, OSError, AssertionError):
            yield
            return
        with lock:
            with suppress(OSError):  # a network file system may have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def count(entry: Mapping[str, Any], name: str) -> int:
    """Return the count of this name in an entry, 0 where there is none or an edited file holds something else."""
    found = entry.get(name)
    return found if type(found) is int and found > 0 else 0


_records: dict[Path | None, Record] = {}


def learner_record() -> Record:
    """Return the learner's record as the environment says now."""
    path = None if solved_edition() else data_folder() / "progress.json"
    if path not in _records:
        _records[path] = Record(path)
    return _records[path]
