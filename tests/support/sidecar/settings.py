"""The smallest good configuration, and ways to load it changed; the machine's environment is never read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import Settings, load

GOOD = """\
group: billing
topics: [orders]
kafka:
  bootstrap.servers: localhost:9092
deliver:
  url: http://127.0.0.1:8080/events
"""


def write_good(folder: Path, more: str = "") -> Path:
    """The smallest good configuration as a file, with more lines at its end."""
    path = folder / "reconsume.yaml"
    path.write_text(GOOD + more, encoding="utf-8")
    return path


def good(folder: Path, *sets: str, **environ: str) -> Settings:
    """It, with `--set` and variables on top."""
    return load(write_good(folder), sets, environ)


def problems(file: Path | None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    """The sentences with which a bad configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load(file, sets, environ or {})
    return caught.value.problems
