"""The `servelab` command. Every command imports what it needs when it runs, so `servelab --help` is quick."""

from __future__ import annotations

import typer

from servelab import __version__
from servelab.translation import _

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Learn how large language models run fast."))


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


def main() -> None:
    """Run the command line."""
    app()
