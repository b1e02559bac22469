"""Decide which settings are secrets, and show a value without revealing one."""

from __future__ import annotations

import re

from reconsume.sidecar.masking import MASK, text_without_secrets, url_without_secrets
from reconsume.sidecar.settings.values import KeyPath

# The PEM settings hold whole keys; oauthbearer.config and extensions may hold credentials.
SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas|(private|api|access)[._-]?key|key\.pem"
    r"|oauthbearer\.(config|extensions|assertion)",
    re.I,
)
NOT_SECRET = frozenset({"token_file", "kafka_secret", "sasl.oauthbearer.token.endpoint.url"})
"""Names that match `SECRET`, but hold where a secret is and not the secret itself."""
FILE = re.compile(r"[a-z.]+\.file|bearer_token_file|signing_secret_file")
"""Names of settings that hold the absolute path of a secret's file."""


def is_secret(path: KeyPath) -> bool:
    """Whether a value at `path` must not be shown."""
    return any(isinstance(name, str) and name not in NOT_SECRET and SECRET.search(name) for name in path)


def is_path(path: KeyPath, value: object) -> bool:
    """Whether the value is the path of a secret's file.

    Any other value may be the secret itself, written under the wrong key.
    """
    named = isinstance(path[-1], str) and FILE.fullmatch(path[-1]) is not None
    return named and isinstance(value, str) and value.startswith("/")


def masked(path: KeyPath, value: object) -> object:
    """Return the value with secrets masked, also those in URLs, also inside mappings and lists."""
    if is_secret(path) and not is_path(path, value):
        return MASK
    if isinstance(value, dict):
        return {key: masked((*path, str(key)), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(path, inner) for inner in value]
    if not isinstance(value, str):
        return value
    return url_without_secrets(value) if is_url(path) else text_without_secrets(value)


def is_url(path: KeyPath) -> bool:
    """Whether the setting at `path` is a URL: then all of its value is one, whatever was written there."""
    return isinstance(path[-1], str) and path[-1].endswith("url")
