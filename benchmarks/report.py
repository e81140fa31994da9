"""What a suite found out, as JSON: every sample with its unit and case, and the targets with what was reached.

A section keeps its own commit, date and versions, so that one can be measured again without the others.
"""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1

Case = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Measurement:
    """One quantity in one case. samples: as measured, in order, at least one. unit: such as "tokens/s", "ms", "x"."""

    name: str
    unit: str
    samples: tuple[float, ...]
    case: Case = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the samples lie between them."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Target:
    """A bar that a measured value is held against. relation: ">=" or "<="."""

    name: str
    value: float
    relation: str
    bar: float
    unit: str = "x"

    def __post_init__(self) -> None:
        if self.relation not in (">=", "<="):
            raise ValueError(f'expected the relation ">=" or "<=", got {self.relation!r}')

    @property
    def is_met(self) -> bool:
        return self.value >= self.bar if self.relation == ">=" else self.value <= self.bar

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name}: {self.value:.3g} {self.unit}, {self.relation} {self.bar:.3g} asked: {verdict}"


@dataclass(frozen=True)
class Result:
    """What one section measured. settings: what else a reader must know to measure it again."""

    measurements: tuple[Measurement, ...]
    targets: tuple[Target, ...] = ()
    settings: Case = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    date: str = ""
    seconds: float = 0.0

    def find(self, name: str, **case: str | int | float) -> Measurement:
        """The one measurement of this name whose case has all of `case`. Raises ValueError unless there is one."""
        found = [m for m in self.measurements if m.name == name and case.items() <= dict(m.case).items()]
        if len(found) != 1:
            raise ValueError(f"expected one measurement {name!r} with {case}, got {len(found)}")
        return found[0]


@dataclass(frozen=True)
class Report:
    """All sections of one suite on one machine."""

    suite: str
    machine: Mapping[str, str | int | float]
    sections: Mapping[str, Result] = field(default_factory=dict)

    def with_section(self, name: str, result: Result) -> "Report":
        """This report with one section new or measured again."""
        return dataclasses.replace(self, sections={**self.sections, name: result})

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": VERSION, **rounded(asdict(self))}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Report":
        """Raises ValueError where the file is not a report of this version."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("version") != VERSION:
                raise ValueError("another version")
            sections = {name: read_result(section) for name, section in content.pop("sections").items()}
            return cls(sections=sections, **content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"expected a report of version {VERSION} in {path}, got another file ({error})") from None


def read_result(content: dict[str, Any]) -> Result:
    measurements = [Measurement(**{**entry, "samples": tuple(entry["samples"])}) for entry in content["measurements"]]
    targets = [Target(**entry) for entry in content["targets"]]
    return Result(**{**content, "measurements": tuple(measurements), "targets": tuple(targets)})


def rounded(value: Any) -> Any:
    """The same with five significant digits: more than any clock here can tell."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, Iterable) and not isinstance(value, str) else value
