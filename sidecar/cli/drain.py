"""`drain`: drain the sidecar of this pod, from a preStop hook in an image without a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconsume.sidecar.cli.drain_client import drain as call
from reconsume.sidecar.cli.drain_client import token_in
from reconsume.sidecar.cli.terminal.arguments import address, duration
from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import load

LONGEST = 3_600_000
"""ms; the longest timeout that the sidecar's API accepts."""


def drain(
    options: Options,
    api: Annotated[
        str | None,
        typer.Option("--api", metavar="ADDRESS", help="Where its API is; else api.listen of the configuration."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long it may take; else the sidecar's drain_timeout."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Its token; else api.token_file, without --api."),
    ] = None,
    _yes: NeverAsks = False,
) -> int:
    """Drain the sidecar of this pod.

    It fetches nothing more, waits for what is out, commits and leaves the group; then this returns, while the process
    runs on until SIGTERM, for another minute at most. For preStop: Kubernetes' own httpGet hook cannot POST, and this
    needs no shell. Where the API has a token, it is read from its file.

    Ends with 0 when nothing was left, 1 when deliveries were, or when no sidecar answers.

    \b
    Examples:
      reconsume drain -c /etc/reconsume/reconsume.yaml
      reconsume drain --api unix:/run/reconsume/api.sock --timeout 20s
    """
    limit = None if timeout is None else duration(timeout, "--timeout")
    listen = None if api is None else address(api, "--api")
    usual, group = LONGEST, None
    if listen is None:
        settings = load(options.config, options.sets)
        listen, usual, group = settings.api.listen, settings.longest_drain, settings.group
        if token_file is None and settings.api.token_file is not None:
            token_file = Path(settings.api.token_file)
    token = "" if token_file is None else token_in(token_file)
    answer = call(listen, (usual if limit is None else limit) / 1000, limit, token, group)
    options.output.rows(("drained", "left"), [answer._asdict()])
    if answer.drained:
        return DONE
    talk(f"{listen}: {plural(answer.left, 'delivery')} still in flight, for the partitions' next owner")
    return FAILED
