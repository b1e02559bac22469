"""`drain`: drain the sidecar of this pod, from a preStop hook in an image without a shell.

This is only the call of `POST /drain`; the running sidecar does the work (`api/app.py`). The command finds the sidecar
by the configuration that both have, and waits as long as the drain may take.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode

from reconsume.sidecar.cli.terminal.arguments import tokens_in
from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_of_all
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.sidecar_connection import SidecarConnection
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.addresses import Listen
from reconsume.sidecar.settings.modes import expect_sidecar

ANSWER_WITHIN = 5.0
"""Seconds to wait beyond the drain itself: the sidecar responds at its own deadline, not before."""
LONGEST_ANSWER = 65_536


def drain(options: Options, _yes: NeverAsks = False) -> int:
    """Drain the sidecar of this pod, with all its groups.

    It fetches nothing more, waits for what is out, commits and leaves the group; then this returns, while the process
    runs on until SIGTERM, for another minute at most. For preStop: Kubernetes' own httpGet hook cannot POST, and this
    needs no shell. Where the API has a token, it is read from its file.

    Ends with 0 when nothing was left, 1 when deliveries were, or when no sidecar answers.

    \b
    Example:
      reconsume drain -c /etc/reconsume/reconsume.yaml
    """
    groups = settings_of_all(options)
    for settings in groups:
        expect_sidecar(settings)
    api = groups[0].api  # one sidecar has all these groups, and one API
    token = None
    if api.token_file is not None:
        tokens, fault = tokens_in(Path(api.token_file))
        if not tokens:
            raise SetupError(f"the token file {api.token_file} (api.token_file): {fault}")
        token = tokens[0].secret.decode("ascii")  # no other character is in one
    longest = max(settings.longest_drain for settings in groups)
    left = call_drain(api.listen, [settings.group for settings in groups], token, longest / 1000)
    options.output.rows(("drained", "left"), [{"drained": left == 0, "left": left}])
    if not left:
        return DONE
    talk(f"{api.listen}: {plural(left, 'delivery')} still in flight, for the partitions' next owner")
    return FAILED


def call_drain(listen: Listen, groups: Sequence[str], token: str | None, longest: float) -> int:
    """Ask the sidecar on `listen` to drain; return how many deliveries were still in flight at its deadline.

    `groups`: those that it must have; the usual port is the same in all sidecars. `token`: needed if the API requires
    one. `longest`: seconds that the drain may take. Raises SetupError if no sidecar responds, if it has other groups,
    or if the response is not that of a drain.
    """
    headers = {"Host": "localhost", "Content-Length": "0"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = SidecarConnection(listen, longest + ANSWER_WITHIN)
    try:
        connection.request("POST", f"/drain?{urlencode([('group', name) for name in groups])}", headers=headers)
        response = connection.getresponse()
        body = response.read(LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"no sidecar answers on {listen} (api.listen): {error or type(error).__name__}") from error
    finally:
        connection.close()
    if response.status != 200:
        refuse(listen, response.status)
    try:
        return int(json.loads(body)["left"])
    except (ValueError, KeyError, TypeError):
        refuse(listen, response.status)


def refuse(listen: Listen, status: int) -> NoReturn:
    """Raise SetupError with what this HTTP status of an answer that is no drain means."""
    sidecar = f"the sidecar on {listen}"
    match status:
        case 401:
            raise SetupError(f"{sidecar} asks for a token: name its file in api.token_file")
        case 409:
            text = "name each of its configurations by -c, or the address of this group's sidecar in api.listen"
            raise SetupError(f"{sidecar} has other groups, and goes on: {text}")
        case _:
            raise SetupError(f"what answers on {listen} does not drain: HTTP {status}")
