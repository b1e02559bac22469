"""`ui`: the dashboard."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.terminal.arguments import address, tokens_in
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_groups, settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.process_memory import give_back_memory, keep_memory_private
from reconsume.sidecar.settings.model import is_far
from reconsume.sidecar.settings.policy import build_policy

if TYPE_CHECKING:
    from reconsume.sidecar.http.server import Server

LISTEN = "127.0.0.1:8473"
AUDIT = "reconsume-ui-audit.jsonl"


def ui(
    options: Options,
    listen: Annotated[str, typer.Option("--listen", metavar="ADDRESS", help="Where to listen.")] = LISTEN,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Operators' tokens; otherwise operators.token_file. Without either, the dashboard is read-only.",
        ),
    ] = None,
    audit_file: Annotated[
        Path | None,
        typer.Option(
            "--audit-file",
            metavar="FILE",
            help=f"The log of what was done; otherwise operators.audit_file, or {AUDIT} in your state folder.",
        ),
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A name by which it is called, besides ui.hosts; may be repeated."),
    ] = None,
) -> None:
    """Serve the dashboard.

    The group live: what waits and when it is due, why records died, what is wrong now; search, and one record's journey
    as a picture; dead letters; the policy and who changed it; instances and lag. It needs no Spark job.

    It is read-only, and only this machine reaches it. With --token-file, or operators.token_file of the configuration,
    whoever signs in by a token may redrive, dismiss and export dead letters; a plan is shown before, and every action
    is logged. Keys, values, headers and texts then need a sign-in as well, unless ui.read is open. Outside loopback the
    token is needed to read anything, and a proxy for TLS. Behind a proxy that serves it below a path, set ui.base_path.
    Where `ui.groups` names groups, the first page is a table of them, with the pages of each one click away. `/metrics`
    then has the members and the lag of each, and how long its oldest undelivered record has waited.
    Ends on Ctrl-C; a redrive under way ends between two transactions.

    \b
    Examples:
      reconsume ui
      reconsume ui --token-file /run/secrets/reconsume-ui --audit-file /var/log/reconsume-ui.jsonl
    """
    chosen = address(listen, "--listen")
    if token_file is not None and (fault := tokens_in(token_file)[1]):
        raise typer.BadParameter(f"--token-file: {token_file}: {fault}")
    if token_file is not None:
        options = replace(options, sets=[*options.sets, f"operators.token_file={token_file.absolute()}"])
    settings = settings_for_groups(options)
    operators = settings.operators
    token_file = None if operators.token_file is None else Path(operators.token_file)
    if token_file is not None and (fault := tokens_in(token_file)[1]):
        raise ConfigError([f"operators.token_file: {token_file}: {fault}; --token-file names another file"])
    if audit_file is None:
        audit_file = Path(operators.audit_file) if operators.audit_file is not None else state_folder() / AUDIT
    if token_file is not None:
        audit_file.parent.mkdir(parents=True, exist_ok=True)
    from reconsume.sidecar.ui.app import (  # slow to import, and --help does not need it
        Dashboard,
        DashboardOptions,
        serve,
    )

    keep_memory_private()
    give_back_memory()
    read = settings.ui.read or ("open" if token_file is None and not is_far(chosen) else "signed-in")
    names = (*settings.ui.hosts, *(hosts or ()))
    wanted = DashboardOptions(chosen, token_file, audit_file, names, read=read, base_path=settings.ui.base_path)

    def announce(server: Server) -> None:
        where = str(chosen._replace(port=server.port or 0))
        url = where if chosen.path is not None else f"http://{where}{settings.ui.base_path}/"
        talk(f"the dashboard is on {url}{', read-only' if token_file is None else ''}; Ctrl-C ends it")

    if settings.ui.groups and options.group is None:
        from reconsume.sidecar.ui.groups_app import GroupsDashboard

        serve(GroupsDashboard(settings, wanted), announce)
    else:
        settings = settings_for_kafka(options)
        serve(Dashboard(settings, build_policy(settings, "ui"), wanted), announce)


def state_folder() -> Path:
    """Return the folder for the state of this user's programs (XDG_STATE_HOME)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "reconsume"
