"""`SpeculationMetrics`: what drafting brought."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculationMetrics:
    """Counts over the steps in which a request decoded: of one request, or summed over many.

    steps: decoding rows of the target, one a request and step, with drafts or without. emitted: output tokens that
    they brought. drafted_at, accepted_at: draft tokens by their place in the draft, the first at 0.
    """

    steps: int = 0
    emitted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record(self, num_drafted: int, num_accepted: int, num_emitted: int | None = None) -> None:
        """Count one row of a step. num_emitted: by default all that were accepted and one of the target's own.

        An accepted token that comes after the end of the output is accepted, and not emitted.
        """
        if not 0 <= num_accepted <= num_drafted:
            raise ValueError(f"expected 0 <= accepted <= drafted, got {num_accepted} of {num_drafted}")
        self.steps += 1
        self.emitted += num_accepted + 1 if num_emitted is None else num_emitted
        add_ones(self.drafted_at, num_drafted)
        add_ones(self.accepted_at, num_accepted)

    def add(self, other: "SpeculationMetrics") -> None:
        """Count all that `other` counted."""
        self.steps += other.steps
        self.emitted += other.emitted
        self.drafted_at = add_lists(self.drafted_at, other.drafted_at)
        self.accepted_at = add_lists(self.accepted_at, other.accepted_at)

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at)

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens of all drafted ones, 0..1; 0 before the first. Those behind a rejected one count."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """For each place in the draft: accepted of those that were drafted there."""
        padded = self.accepted_at + [0] * (len(self.drafted_at) - len(self.accepted_at))
        return [accepted / drafted for accepted, drafted in zip(padded, self.drafted_at, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        """Output tokens of one target step and request, 1 without speculation; 0 before the first."""
        return self.emitted / self.steps if self.steps else 0.0


def add_ones(counts: list[int], length: int) -> None:
    """Add 1 to the first `length` counts, which grow where they are fewer."""
    counts.extend([0] * (length - len(counts)))
    for place in range(length):
        counts[place] += 1


def add_lists(left: list[int], right: list[int]) -> list[int]:
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return [count + (shorter[place] if place < len(shorter) else 0) for place, count in enumerate(longer)]
