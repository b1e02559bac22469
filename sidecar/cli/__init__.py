"""The command line: one file or folder for each command. `terminal/output` prints, `terminal/exit_codes` maps errors to
exit codes.

`reconsume` and `python -m reconsume.sidecar` call `main`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from reconsume.sidecar.cli import (
    acls,
    audit,
    config,
    doctor,
    drain,
    explain,
    find,
    group,
    groups,
    holds,
    init,
    inject,
    instances,
    left_out,
    policy,
    reset,
    run,
    settle,
    topics,
    ui,
    view,
)
from reconsume.sidecar.cli.dlq import commands as dlq
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


@functools.cache
def command_tree() -> Any:
    """Build the commands from `app`, once in a process: it takes typer 30 ms."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line and end the program with its exit code."""
    repair_streams()
    stdout = sys.stdout
    try:
        command_tree()(prog_name="reconsume")
    except SystemExit:
        if sys.stdout is not stdout:  # if the reader of help went away, typer replaces it and exits with 1
            sys.exit(READER_GONE)
        raise
    except Exception as error:  # noqa: BLE001 — also an error outside commands: help on a full disk
        sys.exit(report(error, debug=False))


Member = Callable[..., int | None] | typer.Typer
PANELS: dict[str, dict[str, Member]] = {
    "First steps": {"init": init.init},
    "Set up and check": {
        "config": config.app,
        "topics": topics.app,
        "acls": acls.app,
        "doctor": doctor.doctor,
        "explain": explain.explain,
        "inject": inject.inject,
    },
    "Run": {
        "run": run.run,
        "drain": drain.drain,
        "ui": ui.ui,
        "groups": groups.groups,
        "view": view.app,
        "instances": instances.instances,
        "policy": policy.app,
        "group": group.app,
        "hold": holds.hold,
        "release": holds.release,
        "holds": holds.holds,
    },
    "Look and repair": {
        "find": find.find,
        "retries": retries.app,
        "dlq": dlq.app,
        "settle": settle.settle,
        "reset": reset.reset,
        "audit": audit.audit,
    },
}
"""The commands, and the groups of commands, by the panel of help: both in the order in which a user comes to them."""
TEXTS = {"init": init.VALUES, "inject": inject.ANNOTATIONS}
"""The commands with options from a table."""

take_common(app, root)
if left_out.DEV:
    from reconsume.sidecar.cli.dev import commands as dev

    PANELS["First steps"] |= {"demo": dev.demo, "dev": dev.app}
else:
    left_out.stand_in(app, "demo")
    left_out.stand_in(app, "dev")
for panel, members in PANELS.items():
    for name, member in members.items():
        if isinstance(member, typer.Typer):
            app.add_typer(member, name=name, rich_help_panel=panel)
        else:
            command(app, name, panel=panel, texts=TEXTS.get(name))(member)
