"""A secret that all secured tests share, so that a single search tells whether any output of the suite holds one."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

CANARY = "canary-4Qz8tW2nXv"
"""Part of every password, client's secret and key passphrase that a test configures."""
ALLOWED = re.compile(r"\.(yaml|json|properties)$|/(password|sasl\.jaas\.config|ca\.crt|user\.\w+|[a-z-]+\.pem)$")
"""Files that a test itself has written: configurations and mounted secrets."""
LARGEST = 16 << 20


def forms() -> tuple[bytes, ...]:
    """The secret as it may stand in an output: as it is, and base64 at each of the three alignments."""
    plain = CANARY.encode()
    encoded = (base64.b64encode(b"x" * skip + plain) for skip in range(3))
    return (plain, *(text[4 : len(text) // 4 * 4 - 4] for text in encoded))


FORMS = forms()


def betrays(text: str | bytes) -> bool:
    """Whether an output holds the secret."""
    held = text.encode(errors="replace") if isinstance(text, str) else text
    return any(form in held for form in FORMS)


def betraying(files: Iterable[Path]) -> Iterator[Path]:
    """The files that hold it, of those that no test has written itself."""
    for path in files:
        if ALLOWED.search(str(path)) is not None or path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size <= LARGEST and betrays(path.read_bytes()):
            yield path
