"""The `servelab` command. Every command imports what it needs when it runs, so `servelab --help` is quick."""

from __future__ import annotations

import typer

from servelab import __version__
from servelab.cli.load import load
from servelab.translation import _

DEFAULT_PORT = 8888

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=_("Learn how large language models are made to run fast."),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"servelab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help=_("Show the version.")
    ),
) -> None:
    """Hold the options that belong to no command."""


@app.command(help=_("Check this machine, line by line, and say how to repair what is wrong."))
def doctor() -> None:
    """Print the report; the exit code is 1 when a line is a problem."""
    import rich

    from servelab.device import doctor as examination

    lines = examination.report()
    rich.print(examination.table(lines))
    if any(line.status == "problem" for line in lines):
        raise typer.Exit(1)


@app.command(help=_("Prepare the model and the workspace, then start JupyterLab on the first chapter."))
def lab(
    port: int = typer.Option(DEFAULT_PORT, min=1, max=65535, help=_("The port of JupyterLab on this machine.")),
    browser: bool = typer.Option(True, help=_("Open a browser, or print how to reach a remote machine.")),
) -> None:
    """Start the course; what is in the way is said in one sentence, and the exit code is then 1."""
    from servelab.cli.launch import CannotStart, start

    try:
        start(port, browser)
    except CannotStart as reason:
        typer.echo(f"\n{reason}", err=True)
        raise typer.Exit(1) from reason
    except KeyboardInterrupt as stopped:
        typer.echo(_("\nStopped: run `make lab` to go on."), err=True)
        raise typer.Exit(130) from stopped


@app.command("train-draft", help=_("Train a draft head on text that the model itself writes; it can be stopped."))
def train_draft(
    minutes: float = typer.Option(10.0, min=0.1, help=_("Minutes in all: a later run with more of them goes on.")),
    tokens: int | None = typer.Option(None, min=1, help=_("Tokens that the model writes, not 45 % of the time.")),
    steps: int | None = typer.Option(None, min=1, help=_("Batches to train on, instead of the rest of the time.")),
    output: str | None = typer.Option(None, help=_("The .safetensors file to write, by default one in the cache.")),
    model: str = typer.Option("smollm2-135m", help=_("The model that the head drafts for.")),
    seed: int = typer.Option(0, min=0, help=_("Of prompts, draws and first weights.")),
    k: int = typer.Option(4, min=1, max=16, help=_("Length of the drafts that acceptance is measured with.")),
) -> None:
    """Train; what is in the way is said in one sentence, and the exit code is then 1."""
    from servelab.cli.train_draft import train

    try:
        train(model, output, minutes, tokens, steps, seed, k)
    except (ValueError, RuntimeError, OSError) as reason:
        typer.echo(f"\n{reason}", err=True)
        raise typer.Exit(1) from reason
    except KeyboardInterrupt as stopped:
        typer.echo(_("\nStopped: the same command goes on from here."), err=True)
        raise typer.Exit(130) from stopped


@app.command(help=_("Serve a model to OpenAI-compatible clients on this machine, until Ctrl-C."))
def serve(
    model: str = typer.Argument("smollm2-135m", help=_("A name that the course knows, a hub id, or a folder.")),
    host: str = typer.Option("127.0.0.1", help=_("The address to listen on; 0.0.0.0 for other machines too.")),
    port: int = typer.Option(8000, min=0, max=65535, help=_("The port; 0 for any that is free.")),
    api_key: str | None = typer.Option(None, envvar="SERVELAB_API_KEY", help=_("What clients must know, if anything.")),
    served_model_name: str | None = typer.Option(None, help=_("What clients call the model, by default its name.")),
    max_waiting: int = typer.Option(256, min=0, help=_("Requests that may wait; more are sent away (429).")),
    max_model_len: int | None = typer.Option(None, min=1, help=_("Tokens of a request at most, prompt and answer.")),
    max_num_seqs: int = typer.Option(16, min=1, help=_("Requests that run at the same time at most.")),
    max_num_batched_tokens: int = typer.Option(512, min=1, help=_("Tokens of one step at most.")),
    block_size: int = typer.Option(16, min=1, help=_("Tokens of a block of the KV cache.")),
    num_blocks: int | None = typer.Option(None, min=1, help=_("Blocks of the KV cache, not a share of the memory.")),
    kv_cache_dtype: str = typer.Option("auto", help=_("auto, int8, fp8_e4m3 or fp8_e5m2.")),
    prefix_caching: bool = typer.Option(True, help=_("Let requests share what they begin with.")),
    speculative: str | None = typer.Option(None, help=_("Draft tokens with: ngram, or head.")),
    k: int = typer.Option(4, min=1, max=16, help=_("Tokens of a draft at most.")),
) -> None:
    """Serve; what is in the way is said in one sentence, and the exit code is then 1."""
    from servelab.cli.serve import run

    engine = {
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "kv_cache_dtype": kv_cache_dtype,
        "prefix_caching": prefix_caching,
        "record_trace": False,
    }
    try:
        run(model, host, port, api_key, served_model_name, max_waiting, speculative, k, **engine)
    except Exception as reason:
        typer.echo(f"\n{reason}", err=True)
        raise typer.Exit(1) from reason


@app.command(help=_("Serve a load on paper: a model on a GPU that you need not own, at thousands of requests."))
def simulate(
    example: int | None = typer.Option(None, help=_("Print the lesson's example 1, 2 or 3, and nothing else.")),
    model: str = typer.Option("Llama-3-70B", help=_("A model of the course's table, or how its name begins.")),
    gpu: str = typer.Option("H100 SXM", help=_("A GPU of the course's table, or how its name begins.")),
    memory_gb: float | None = typer.Option(
        None, min=0.001, max=1e6, help=_("Its memory, 10^9 bytes; else what drivers say.")
    ),
    usable_share: float = typer.Option(0.98, min=0.01, max=1, help=_("Of it, for weights, activations and KV.")),
    weight_bytes: float = typer.Option(1.0, min=0.01, help=_("Bytes of a weight; 1: 8 bit.")),
    embedding_bytes: float = typer.Option(2.0, min=0.01, help=_("Bytes of an embedding's number.")),
    kv_bytes: float = typer.Option(2.0, min=0.01, help=_("Bytes of a number of K or V; 1: FP8.")),
    compute_dtype: str | None = typer.Option(None, help=_("Whose peak the arithmetic has, such as fp8.")),
    efficiency: float = typer.Option(0.6, min=0.001, help=_("Share of the roofline that is reached: assumed.")),
    overhead_ms: float = typer.Option(0.0, min=0, help=_("Of each step, whatever it computes.")),
    requests: int = typer.Option(1_000, min=1, help=_("How many.")),
    mean_tokens: float = typer.Option(850, min=2, help=_("Prompt and output, mean of a long tail.")),
    max_tokens: int = typer.Option(4_096, min=2, help=_("The longest of them.")),
    prompt_tokens: int | None = typer.Option(None, min=1, help=_("All alike, instead of a long tail.")),
    output_tokens: int | None = typer.Option(None, min=1, help=_("All alike, instead of a long tail.")),
    rate: float | None = typer.Option(None, min=0.000001, help=_("Arrivals a second (Poisson); else all at once.")),
    users: int | None = typer.Option(None, min=1, help=_("Users who wait for each answer, instead of a rate.")),
    seed: int = typer.Option(0, min=0, help=_("Of lengths, arrivals and accepted drafts.")),
    kv_cache: str = typer.Option("paged", help=_("paged, or contiguous.")),
    reserve: str = typer.Option("max", help=_("What contiguous reserves: max, or exact.")),
    max_model_len: int | None = typer.Option(None, min=1, help=_("Tokens of a request at most; what max reserves.")),
    scheduling: str = typer.Option("continuous", help=_("continuous, or static.")),
    max_num_seqs: int = typer.Option(256, min=1, help=_("Requests that run at the same time at most.")),
    max_num_batched_tokens: int = typer.Option(4_096, min=1, help=_("Tokens of one step at most.")),
    block_size: int = typer.Option(16, min=1, help=_("Tokens of a block of the KV cache.")),
    k: int = typer.Option(0, min=0, help=_("Draft tokens of a request and step; 0: no speculation.")),
    acceptance: float = typer.Option(0.7, min=0, max=1, help=_("Chance of each when those before it stand.")),
    draft_cost: float = typer.Option(0.1, min=0, help=_("Of a draft token, in decode steps of one request.")),
    json: str | None = typer.Option(None, help=_("A file for all numbers.")),
    trace: str | None = typer.Option(None, help=_("A file for the trace, which the widgets play.")),
) -> None:
    """Simulate; what is in the way is said in one sentence, and the exit code is then 1."""
    from servelab.cli.simulate import LoadOptions, run, show_example

    card = {
        "model": model,
        "gpu": gpu,
        "memory_bytes": None if memory_gb is None else int(memory_gb * 1e9),
        "usable_share": usable_share,
        "bytes_per_parameter": weight_bytes,
        "bytes_per_embedding": embedding_bytes,
        "bytes_per_element": kv_bytes,
        "compute_dtype": compute_dtype,
        "efficiency": efficiency,
        "overhead_s": overhead_ms / 1e3,
        "block_size": block_size,
        "step_tokens": max_num_batched_tokens,
        "step_requests": max_num_seqs,
    }
    engine = {"kv_cache": kv_cache, "reserve": reserve, "scheduling": scheduling, "max_model_len": max_model_len}
    lengths = (requests, mean_tokens, max_tokens, prompt_tokens, output_tokens)
    load = LoadOptions(*lengths, rate, users, seed)
    try:
        if example is not None:
            show_example(example)
        else:
            run(card, engine, load, (k, acceptance, draft_cost), json, trace)
    except (ValueError, OSError) as reason:
        typer.echo(f"\n{reason}", err=True)
        raise typer.Exit(1) from reason


app.command(help=_("Load an OpenAI-compatible server, and show latency, throughput, goodput and memory."))(load)


def main() -> None:
    """Run the command line."""
    app()
