"""The command line: one file a noun, `output` prints, `failures` knows the exit codes.

`main` is what `reconsume` and `python -m sidecar` call.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli import config, demo, dev, explain, policy, run, topics
from sidecar.cli.options import Options, take_common
from sidecar.cli.output import write

app = typer.Typer(
    help="A Kafka retry sidecar: delayed retries, dead letters and a group-wide view, for a service in any language.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same on every terminal, and rich is not loaded for it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(wanted: bool) -> None:
    """Print the version and end, when it is asked for."""
    if wanted:
        from importlib.metadata import version

        write(version("reconsume"))
        raise typer.Exit


def root(
    _options: Options,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options before the command's name."""


def main() -> None:
    """Run the command line and end the program with its exit code."""
    app(prog_name="reconsume")


take_common(app, root)
app.add_typer(config.app, name="config")
app.add_typer(topics.app, name="topics")
app.add_typer(policy.app, name="policy")
explain.add_to(app)
run.add_to(app)
app.add_typer(dev.app, name="dev")
demo.add_to(app)
