"""The file with an operator's token that `init` writes beside the configuration.

The token is in this file alone: never in the configuration, the Compose file or a manifest, which people commit. The
file has the mode 0600, and a line of `.gitignore` keeps it out of the repository.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from reconsume.sidecar.files import replace_file

TOKENS = "reconsume-operators.token"
TOKEN_BYTES = 24


def write_token(folder: Path) -> bool:
    """Write the file with a new token; return whether it was not there. Raises OSError."""
    try:
        with (folder / TOKENS).open("x", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{secrets.token_urlsafe(TOKEN_BYTES)}\n")
    except FileExistsError:
        return False
    return True


def ignore_token(folder: Path) -> bool:
    """Add the file to the folder's `.gitignore`; return whether its line was missing. Raises OSError."""
    path = folder / ".gitignore"
    text = path.read_text("utf-8") if path.exists() else ""
    if TOKENS in (line.strip().removeprefix("/") for line in text.splitlines()):
        return False
    end = "" if not text or text.endswith("\n") else "\n"
    replace_file(path, f"{text}{end}{TOKENS}\n")
    return True
