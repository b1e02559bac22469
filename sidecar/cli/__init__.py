"""The command line: one file or folder for each command. `terminal/output` prints, `terminal/exit_codes` maps errors to
exit codes.

`reconsume` and `python -m reconsume.sidecar` call `main`.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reconsume.sidecar.cli import (
    acls,
    audit,
    config,
    doctor,
    drain,
    explain,
    find,
    holds,
    init,
    inject,
    left_out,
    run,
    settle,
    topics,
    ui,
    view,
)
from reconsume.sidecar.cli.dlq import commands as dlq
from reconsume.sidecar.cli.policy import commands as policy
from reconsume.sidecar.cli.retries import commands as retries
from reconsume.sidecar.cli.terminal.exit_codes import READER_GONE, exit_code, report
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import write
from reconsume.sidecar.cli.terminal.program import Program
from reconsume.sidecar.cli.terminal.std_streams import repair_streams

app = typer.Typer(
    cls=Program,
    help="A Kafka retry sidecar: delayed retries, dead letters and a group-wide view, for a service in any language.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same on every terminal, and rich is not loaded for it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(wanted: bool) -> None:
    """Print the version and end the program if `--version` is given."""
    if wanted:
        from reconsume.sidecar.release import this_release

        raise typer.Exit(exit_code(lambda: write(str(this_release())), debug=False))


def root(
    _options: Options,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print version, commit, Python and Kafka client."
        ),
    ] = False,
) -> None:
    """The options before the command's name."""


def main() -> None:
    """Run the command line and end the program with its exit code."""
    repair_streams()
    stdout = sys.stdout
    try:
        app(prog_name="reconsume")
    except SystemExit:
        if sys.stdout is not stdout:  # if the reader of help went away, typer replaces it and exits with 1
            sys.exit(READER_GONE)
        raise
    except Exception as error:  # noqa: BLE001 — also an error outside commands: help on a full disk
        sys.exit(report(error, debug=False))


BEGIN, SET_UP, RUN, LOOK = "First steps", "Set up and check", "Run", "Look and repair"
"""The panels of help, in the order in which a user comes to them."""

take_common(app, root)
command(app, "init", panel=BEGIN, texts=init.VALUES)(init.init)
if left_out.DEV:
    from reconsume.sidecar.cli import dev

    command(app, "demo", panel=BEGIN)(dev.demo)
    app.add_typer(dev.app, name="dev", rich_help_panel=BEGIN)
else:
    left_out.stand_in(app, "demo")
    left_out.stand_in(app, "dev")
app.add_typer(config.app, name="config", rich_help_panel=SET_UP)
app.add_typer(topics.app, name="topics", rich_help_panel=SET_UP)
app.add_typer(acls.app, name="acls", rich_help_panel=SET_UP)
command(app, "doctor", panel=SET_UP)(doctor.doctor)
command(app, "explain", panel=SET_UP)(explain.explain)
command(app, "inject", panel=SET_UP, texts=inject.ANNOTATIONS)(inject.inject)
command(app, "run", panel=RUN)(run.run)
command(app, "drain", panel=RUN)(drain.drain)
command(app, "ui", panel=RUN)(ui.ui)
app.add_typer(view.app, name="view", rich_help_panel=RUN)
app.add_typer(policy.app, name="policy", rich_help_panel=RUN)
command(app, "find", panel=LOOK)(find.find)
app.add_typer(retries.app, name="retries", rich_help_panel=LOOK)
app.add_typer(dlq.app, name="dlq", rich_help_panel=LOOK)
command(app, "settle", panel=LOOK)(settle.settle)
command(app, "hold", panel=RUN)(holds.hold)
command(app, "release", panel=RUN)(holds.release)
command(app, "holds", panel=RUN)(holds.holds)
command(app, "audit", panel=LOOK)(audit.audit)
