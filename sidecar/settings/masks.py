"""Decide which settings are secrets, and show a value without revealing one."""

from __future__ import annotations

import re

from sidecar.settings.values import KeyPath

MASK = "********"
# The PEM settings hold whole keys; oauthbearer.config and extensions may hold credentials.
SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas|(private|api|access)[._-]?key|key\.pem"
    r"|oauthbearer\.(config|extensions|assertion)",
    re.I,
)
NOT_SECRET = frozenset({"token_file", "kafka_secret", "sasl.oauthbearer.token.endpoint.url"})
"""Names that match `SECRET`, but hold the place of a secret and not the secret itself."""
FILE = re.compile(r"[a-z.]+\.file")
WORD = re.compile(r"\S+")


def is_secret(path: KeyPath) -> bool:
    """Whether a value at `path` must not be shown."""
    return any(isinstance(part, str) and part not in NOT_SECRET and SECRET.search(part) for part in path)


def is_path(path: KeyPath, value: object) -> bool:
    """Whether the value is the path of a secret's file.

    Any other value may be the secret itself, written in the wrong place.
    """
    named = isinstance(path[-1], str) and FILE.fullmatch(path[-1]) is not None
    return named and isinstance(value, str) and value.startswith("/")


def masked(path: KeyPath, value: object) -> object:
    """Return the value with secrets and passwords in URLs masked, also inside mappings and lists."""
    if is_secret(path) and not is_path(path, value):
        return MASK
    if isinstance(value, dict):
        return {key: masked((*path, str(key)), part) for key, part in value.items()}
    if isinstance(value, list):
        return [masked(path, part) for part in value]
    return WORD.sub(without_user, value) if isinstance(value, str) else value


def without_user(word: re.Match[str]) -> str:
    """Return a word whose user and password are masked if it is a URL with them.

    Up to the last @, because a password may contain @ and slashes. By two searches, because one pattern for both takes
    quadratic time where `//` stands often.
    """
    text = word[0]
    begin, end = text.find("//") + 2, text.rfind("@")
    return f"{text[:begin]}{MASK}{text[end:]}" if 2 <= begin <= end else text
