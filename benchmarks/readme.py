"""Put what was measured into the README: `python -m benchmarks.readme` renews its table and `docs/benchmark.png`.

Everything between the two marks comes from `results/engine.json`; a test compares them.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from benchmarks.contender.process import ROOT
from benchmarks.engine import RESULTS
from benchmarks.report import Measurement, Report, Result
from servelab.figures import curve

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PICTURE = "docs/benchmark.png"
SYSTEMS = ("servelab", "vLLM", "transformers static", "transformers continuous")
SENTENCE = "Decoded tokens per second over the requests that run at once, on one machine in one run."


def section(report: Report) -> str:
    """The part of the README that is measured, in Markdown."""
    compared = report.sections["compare"]
    parts = [
        f"{described(report, compared)}\n",
        speed_table(compared, "decode"),
        f"\n![{alt(compared)}]({PICTURE})\n",
        speed_table(compared, "prefill"),
        "\nWhat each technique brings, held against the target it was given:\n",
        target_table(report),
    ]
    return "\n".join(parts)


def described(report: Report, compared: Result) -> str:
    """Where, when and with what it was measured."""
    machine, settings, versions = report.machine, compared.settings, compared.versions
    return (
        f"Measured on {machine['name']} ({machine['instructions']}, {machine['memory_gb']} GB), "
        f"{compared.date[:10]}, commit {compared.commit}: SmolLM2-135M in {settings['dtype']}, {settings['threads']} "
        f"threads, {settings['rounds']} rounds in turns; Python {versions['python']}, torch {versions['torch']}, "
        f"vLLM {versions.get('vllm', 'left out')}, transformers {versions.get('transformers', 'left out')}. "
        "Tokens per second, the median and in brackets the quartiles."
    )


def speed_table(compared: Result, name: str) -> str:
    """One row a load, one column a system."""
    rows = [m for m in compared.measurements if m.name == name]
    loads = list(dict.fromkeys((m.case["requests"], m.case["context"]) for m in rows))
    systems = [system for system in SYSTEMS if any(m.case["system"] == system for m in rows)]
    lines = [[name.capitalize(), *systems]]
    for requests, context in loads:
        cells = {m.case["system"]: m for m in rows if (m.case["requests"], m.case["context"]) == (requests, context)}
        lines.append(
            [f"{requests} x {context:,} tokens", *(speed(cells[s]) if s in cells else "not run" for s in systems)]
        )
    return table(lines)


def speed(measurement: Measurement) -> str:
    low, high = measurement.quartiles
    return f"{figure(measurement.median)} ({figure(low)} to {figure(high)})"


def target_table(report: Report) -> str:
    """Every target but those of the comparison, which has tables of its own."""
    lines = [["", "Reached", "Asked", ""]]
    for name, result in report.sections.items():
        for target in result.targets if name != "compare" else ():
            sign = "at least" if target.relation == ">=" else "at most"
            verdict = "" if target.is_met else "**missed**"
            lines.append(
                [target.name, f"{figure(target.value)} {target.unit}", f"{sign} {figure(target.bar)}", verdict]
            )
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def alt(compared: Result) -> str:
    """The finding of the picture in words."""
    ratios = [target.value for target in compared.targets if target.name.startswith("decode against vLLM")]
    if not ratios:
        return "Decoded tokens per second of servelab and transformers."
    return (
        f"Decoded tokens per second at 1, 4 and 16 requests: servelab reaches {min(ratios):.2f} to {max(ratios):.2f} "
        "times vLLM's."
    )


def picture(compared: Result) -> go.Figure:
    """Decode speed over requests, one line a system and context."""
    rows = [m for m in compared.measurements if m.name == "decode" and m.case["system"] != "transformers continuous"]
    requests = sorted({int(m.case["requests"]) for m in rows})
    series: dict[str, list[float]] = {}
    for m in rows:
        name = f"{str(m.case['system']).split()[0]}, {m.case['context']:,} tokens"
        series.setdefault(name, [math.nan] * len(requests))[requests.index(int(m.case["requests"]))] = m.median
    return curve(
        requests,
        series,
        x_title="requests at once",
        y_title="decoded tokens/s",
        log_x=True,
        log_y=True,
        sentence=SENTENCE,
        alt=alt(compared),
    )


def renewed(text: str, report: Report) -> str:
    """The README with its measured part anew. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN} and {END} in the README, got none")
    return f"{before}{BEGIN}\n{section(report)}\n{END}{after}"


def main(readme: Path = ROOT / "README.md", results: Path = RESULTS) -> None:
    report = Report.load(results)
    readme.write_text(renewed(readme.read_text(encoding="utf-8"), report), encoding="utf-8")
    picture(report.sections["compare"]).write_image(readme.parent / PICTURE, scale=1.5)


if __name__ == "__main__":
    main()
