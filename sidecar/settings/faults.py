"""Turn faults into sentences: the key, the value, what is allowed, and where the value came from. Hide secrets in them.

`load.Layers` makes sentences of faults; `config show` and the check of the clients mask values by the same rules. A
value is a secret by the name of its setting (`SECRET`), whatever kind that has, because users also write secrets under
wrong keys, and because a property of librdkafka can have any name. Nothing here has state.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence

from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.table import Fault, KeyPath, dotted
from reconsume.topics.masking import MASK, text_without_secrets, url_without_secrets

LONGEST_SHOWN = 60
KAFKA_PROPERTIES = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "acks",
)
"""Properties that are suggested for similar names."""
OTHER_KIND = re.compile(r"[-+]?[0-9.]+|true|false|null|yes|no|on|off|~|", re.I)
"""A text that YAML could read as another kind of value."""
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


def sentence(fault: Fault, origin: str | None = None) -> str:
    """Return the fault as a sentence for people, without any secret, and with escapes for what is not printable.

    `origin`: where the value came from; None if it was not given.
    """
    text = unknown_key(fault) if fault.known else fault.text
    whence = "" if origin is None else f" ({origin})"
    return printable(f"{dotted(fault.path)}{shown(fault)}: {text}{whence}")


def unknown_key(fault: Fault) -> str:
    """Return the sentence about an unknown key, with the most similar key that is known there."""
    path, name = fault.path, str(fault.path[-1])
    if path[0] == "topics" and name == "order":
        return "a group has one order for all its topics: give this topic a group of its own, with its deliver.order"
    if close := most_similar(name, fault.known):
        return f"unknown key; did you mean {dotted((*path[:-1], close))}?"
    # `--set bootstrap.server=…` has given the key `bootstrap`.
    begun = next((known for known in KAFKA_PROPERTIES if f"{known}.".startswith(f"{name}.")), None)
    if len(path) == 1 and ("." in name or begun is not None):
        intended = begun or most_similar(name, KAFKA_PROPERTIES) or name
        return f"unknown key; properties of librdkafka go under kafka, like kafka.{intended}"
    return f"unknown key; known here: {', '.join(fault.known)}"


def most_similar(name: str, known: Sequence[str]) -> str | None:
    """Return the known key that a mistyped one is most likely meant to be; None if none is similar.

    A key that has all its words comes first (`max_times`: max_reconsume_times, which also begins with the same word);
    otherwise the letters decide.
    """
    words = name.split("_")
    candidates = [key for key in known if set(words) <= set(key.split("_"))]
    if candidates:
        return min(candidates, key=lambda key: (key.split("_")[0] != words[0], len(key)))
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def shown(fault: Fault) -> str:
    """Return ` = value`, cut to one line and masked.

    Empty if there is no value, or if the value could hold a secret.
    """
    if not fault.has_value or fault.path == ("kafka",):
        return ""
    value = masked(fault.path, fault.value)
    if isinstance(value, dict):
        return " = {…}"
    line = " ".join(plain(value).split())
    return f" = {line[:LONGEST_SHOWN]}…" if len(line) > LONGEST_SHOWN else f" = {line}"


def plain(value: object) -> str:
    """Return a value as YAML writes it. A text that YAML could read as a number or as true is quoted."""
    if isinstance(value, str):
        return f'"{value}"' if OTHER_KIND.fullmatch(value) else value
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


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
    is_url = isinstance(path[-1], str) and path[-1].endswith("url")
    return url_without_secrets(value) if is_url else text_without_secrets(value)
