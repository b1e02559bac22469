"""The releases of Apache Kafka that can be embedded: a short name for each, and the lock file of its jars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reconsume.sidecar.errors import ConfigError

_HERE = Path(__file__).parent
RELEASES: Mapping[str, Path] = {
    "3.9": _HERE / "jars-3.9.lock",
    "4.0": _HERE / "jars-4.0.lock",
    "4.3": _HERE / "jars-4.3.lock",
    "4.4": _HERE / "jars-4.4.lock",
}
"""The last release that had ZooKeeper beside KRaft, the first without it, the usual one, and the newest. The lock file
fixes the patch version."""
USUAL = "4.3"
"""The usual one: everything is tested with it, and a newer one by `make compat`."""


def lock_of(release: str) -> Path:
    """Return the lock file of a release. Raises ConfigError if it is not one of `RELEASES`."""
    if release not in RELEASES:
        raise ConfigError([f"Kafka {release} cannot be embedded; known are {', '.join(RELEASES)}"])
    return RELEASES[release]
