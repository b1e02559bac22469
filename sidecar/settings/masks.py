"""What must never be shown: which settings are secrets, and how a value is shown without giving one away."""

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
"""They say where a secret is, and not what it is."""
FILE = re.compile(r"[a-z.]+\.file")
# Up to the last @: a password may hold others, and slashes.
USER_INFO = re.compile(r"(?<=//)\S*@")


def is_secret(path: KeyPath) -> bool:
    """Whether a value at `path` must not be shown."""
    return any(isinstance(part, str) and part not in NOT_SECRET and SECRET.search(part) for part in path)


def is_path(path: KeyPath, value: object) -> bool:
    """Whether it is the path of a secret's file; what is none may be the secret itself, written in the wrong place."""
    named = isinstance(path[-1], str) and FILE.fullmatch(path[-1]) is not None
    return named and isinstance(value, str) and value.startswith("/")


def masked(path: KeyPath, value: object) -> object:
    """The value as it may be shown: secrets and passwords in URLs hidden, also inside mappings and lists."""
    if is_secret(path) and not is_path(path, value):
        return MASK
    if isinstance(value, dict):
        return {key: masked((*path, str(key)), part) for key, part in value.items()}
    if isinstance(value, list):
        return [masked(path, part) for part in value]
    return USER_INFO.sub(f"{MASK}@", value) if isinstance(value, str) else value
