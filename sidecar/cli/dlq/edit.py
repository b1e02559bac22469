"""`dlq edit`: change one dead letter by hand and redrive it, with a header that says who changed it."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconsume.sidecar.cli.dlq.difference import difference
from reconsume.sidecar.cli.dlq.filters import (
    SCANNED,
    DryRun,
    Ident,
    ScanMost,
    Yes,
    newest_letter,
    open_dlq,
)
from reconsume.sidecar.cli.dlq.redrive import code_of
from reconsume.sidecar.cli.terminal.arguments import author, read_bytes
from reconsume.sidecar.cli.terminal.confirm import is_to_go_on, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest, edited
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.redrive_target import planned_target
from reconsume.sidecar.errors import LetterError, SetupError
from reconsume.sidecar.files import TemporaryFolder
from reconsume.sidecar.printable import plural

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.topics import DlqTopics

LARGEST_VALUE = 32 * 1024 * 1024
"""Bytes of a new value. Kafka takes 1 MB by default."""
CHANGE = ("id", "place", "target", "bytes")


def edit(
    options: Options,
    ident: Ident,
    value_file: Annotated[
        Path | None, typer.Option("--value-file", metavar="FILE", help="Take the new value from here; no editor.")
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="Who changes it; user@host by default.")] = None,
    scan: ScanMost = SCANNED,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Change a dead letter's value and redrive it.

    Opens $VISUAL or $EDITOR. The record that comes back carries the header RETRY_EDITED, which says who changed it,
    when, and the SHA-256 of the value before and after; the dead letter in the DLQ stays as it was. A letter that was
    redriven already is refused.

    \b
    Examples:
      reconsume dlq edit orders:3:1024
      reconsume dlq edit orders:3:1024 --value-file mended.json --yes
    """
    data = None if value_file is None else read_bytes(value_file, LARGEST_VALUE)
    _, there, policy = open_dlq(options, who)
    letter = the_letter(there, policy, ident, scan)
    value = from_editor(letter.record.value or b"") if data is None else data
    if value == (letter.record.value or b""):
        talk("the value is as it was: nothing is done; `dlq redrive --id` brings it back unchanged")
        return DONE
    row, by = change_row(letter, value, target := planned_target(policy)), author(who)
    for line in difference(letter.record.value, value):
        talk(line)
    question = f"Send the changed record to {target}?"
    if not is_to_go_on(options.output, CHANGE, row, question, dry_run=dry_run, yes=yes, nothing="nothing was sent"):
        return DONE
    code = resend(there, policy, letter, edited(letter, value, audit_of(by, row)))
    if code == DONE:
        talk(f"sent {letter.id} to {target} with {plural(len(value), 'byte')}, changed by {by}")
    options.output.rows_after([row], CHANGE, [row])
    return code


def resend(there: DlqTopics, policy: Policy, original: Letter, letter: Letter) -> int:
    """Redrive `letter`, which is `original` with another value. Raises LetterError if it was redriven meanwhile."""
    from reconsume.sidecar.dlq.redrive_history import eligibility
    from reconsume.sidecar.dlq.redriver import Redriver

    request = RedriveRequest(Filter(ids=(letter.position,)), MOST_REDRIVES_EVER, forgotten=True)
    with stop_signal() as stop, Redriver(there, policy, request, stop) as redriver:
        # As it was found: an earlier redrive may have been by a text that the new value has no more.
        if eligibility(original, request, redriver.past_of(original)) is not Eligibility.READY:
            raise LetterError(f"{letter.position} was redriven meanwhile, and is not sent twice")
        redriver.commit([letter])
    return code_of(redriver.counts)


def the_letter(there: DlqTopics, policy: Policy, ident: str, scan: int) -> Letter:
    """Return the newest dead letter with this id. Raises LetterError if there is none, or if it must not be sent."""
    letter, verdict = newest_letter(there, policy, ident, scan)
    if verdict is Eligibility.REDRIVEN:
        raise LetterError(f"{letter.position} was redriven before, and is not sent twice")
    if verdict is Eligibility.DISMISSED:
        raise LetterError(f"{letter.position} was dismissed, and is not sent")
    if verdict is Eligibility.UNFIT:
        raise LetterError(f"{letter.position} cannot be sent: {letter.fault}")
    return letter


def change_row(letter: Letter, value: bytes, target: str) -> Row:
    """Return the change as a row."""
    old = letter.record.value
    return {
        "id": letter.id,
        "place": letter.position,
        "target": target,
        "was": None if old is None else hashlib.sha256(old).hexdigest(),
        "is": hashlib.sha256(value).hexdigest(),
        "bytes": [len(old or b""), len(value)],
    }


def audit_of(who: str, row: Row) -> bytes:
    """Return the value of the audit header."""
    from reconsume.sidecar.clock import now

    return msgspec.json.encode({"v": 1, "who": who, "at": now().wall_ms, "was": row["was"], "is": row["is"]})


def from_editor(value: bytes, environ: Mapping[str, str] = os.environ) -> bytes:
    """Let the user edit the value in an editor, in a file that only this user can read. Raises SetupError if the
    editor fails."""
    words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    folder = TemporaryFolder("reconsume-")
    try:
        file = folder.path / "value"
        file.write_bytes(value)
        try:
            code = subprocess.run([*words, str(file)], check=False).returncode
        except OSError as error:
            raise SetupError(f"the editor {words[0]} cannot be started: {error.strerror}; set EDITOR") from error
        if code != 0:
            raise SetupError(f"the editor {words[0]} ended with {code}: nothing is done")
        return read_bytes(file, LARGEST_VALUE)
    finally:
        folder.remove()
