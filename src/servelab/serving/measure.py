"""`run_load`: send a load to any OpenAI-compatible server with GuideLLM, and read what came of it.

Nothing here knows how many machines stand behind the address: a vLLM with tensor or pipeline parallelism, or replicas
behind a balancer, are loaded and measured in the same way.
"""

import datetime
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from servelab.serving.guidellm import LoadFailed, Progress, run_scenario
from servelab.serving.load import Load
from servelab.serving.report import read_report
from servelab.serving.target import KV_USAGE, Card, Target, TargetFailed
from servelab.serving.watch import INTERVAL_S, Watcher
from servelab.trace.load import LoadReport
from servelab.translation import _


def run_load(
    url: str,
    load: Load,
    *,
    model: str | None = None,
    tokenizer: str | None = None,
    api_key: str | None = None,
    metrics_urls: Sequence[str] = (),
    interval_s: float = INTERVAL_S,
    progress: bool = True,
    python: Path | None = None,
) -> LoadReport:
    """Load the server at `url` and report.

    model: what the server calls it (default: its only one). tokenizer: a folder or hub id of a tokenizer, by which
    prompts get their length (default: the model's own, where it is on this machine). metrics_urls: servers whose
    `/metrics` to watch, for example the replicas behind a balancer (default: `url`); one without is left out.
    interval_s: between two looks at them. progress: draw a bar. python: of another environment than `.venv-guidellm`.

    Raises ValueError for an address or tokenizer that cannot be, TargetFailed where the server does not answer or
    refuses, EnvironmentMissing without GuideLLM, LoadFailed where the load did not come to its end.
    """
    target = Target(url, api_key)
    card = target.model(model)
    words = find_tokenizer(tokenizer, card)
    target.try_model(card.name, load.chat)
    watched = [Target(address, api_key) for address in metrics_urls] or [target]
    begin = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    scenario = load.scenario(target, card.name, words)
    with ExitStack() as stack:
        watcher = None
        if metrics_urls or has_metrics(target):
            watcher = stack.enter_context(Watcher(watched, interval_s))
        bar = Progress(load.levels, load.requests, load.time_limit_s)
        content = run_scenario(scenario, bar, shown=progress, python=python, offline=Path(words).is_dir())
    if watcher is not None and not watcher.samples:
        raise LoadFailed(_("No memory could be read from /metrics: {reason}").format(reason=watcher.fault))
    report = LoadReport(
        url=target.url,
        model=card.name,
        profile=load.profile,
        tool="",
        date=begin,
        prompt=load.prompt.describe(),
        output=load.output.describe(),
        seed=load.seed,
        service_level=load.service_level,
    )
    read_report(content, report, None if watcher is None else watcher.begin_s)
    if watcher is not None:
        report.samples = [sample for sample in watcher.samples if sample.t_s <= report.points[-1].end_s + 1]
    return report


def has_metrics(target: Target) -> bool:
    """Whether the server tells its memory and queue."""
    try:
        return KV_USAGE in target.metrics()
    except (TargetFailed, ValueError):
        return False


def find_tokenizer(tokenizer: str | None, card: Card) -> str:
    """A folder, or a hub id where one was given. Raises ValueError that says what to give."""
    for name in [tokenizer] if tokenizer else [card.root, card.name]:
        if not name:
            continue
        if Path(name).is_dir():
            if (Path(name) / "tokenizer.json").exists() or (Path(name) / "tokenizer_config.json").exists():
                return str(Path(name).resolve())
            if tokenizer:
                raise ValueError(_("expected a tokenizer.json in {folder}, got a folder without").format(folder=name))
        elif (folder := prepared(name)) is not None:
            return folder
    if tokenizer:
        return tokenizer  # a hub id: GuideLLM fetches it, or says why it cannot
    raise ValueError(
        _("expected --tokenizer as a folder or hub id, because {model!r} is neither a folder nor a model of the course")
        .format(model=card.name)
    )  # fmt: skip


def prepared(name: str) -> str | None:
    """The folder of one of the course's own models, made if it is not there yet."""
    from servelab.model import list_models, prepare_model

    known = {entry.name for entry in list_models() if entry.source == "wheel"}
    return str(prepare_model(name)) if name in known else None
