"""The reference of all settings, made from the table: the JSON Schema, rows for a table, and the page in `docs/`.

`config schema` prints them. Tests compare them with docs/config.schema.json and docs/configuration.md.
"""

from __future__ import annotations

import json
from typing import Any

from reconsume.sidecar.settings.kafka import FILED, FIXED
from reconsume.sidecar.settings.model import LEAVES, Settings
from reconsume.sidecar.settings.table import REQUIRED, schema_of

INTRODUCTION = """\
# Configuration

Made from the settings by `reconsume config schema --markdown`; a test fails when it is not current.

One YAML file (`-c`, default `reconsume.yaml`), overridden by the environment (`RECONSUME_RETRY__MAX_RECONSUME_TIMES=3`:
`__` between levels; `RECONSUME_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap.servers`), overridden by
`--set retry.max_reconsume_times=3`. All faults are reported together, and the exit code is 78. Durations are written
`500ms`, `10s`, `1h30m`, sizes `64KiB`, `16MiB`; a number without a unit is refused. A section with a key `enabled` may
be true or false alone: `ui: true`.

## Settings

| key | allowed | default | meaning |
|---|---|---|---|
"""
FILES = """
## Secrets in files

Each of these properties may stand in a mounted file instead, which is then named with `.file` behind it
(`sasl.password.file: /run/secrets/password`): {names}. A running sidecar takes up a new content by itself.
"""
REFUSED = """
## Properties of librdkafka that cannot be set

Any other property goes under `kafka:` as it is.

| property | why |
|---|---|
"""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "reconsume.yaml", **schema_of(Settings)}


def default_text(default: object) -> str:
    """Return a default on one line. `required` if there is none."""
    if isinstance(default, list):
        return f"[{', '.join(map(str, default))}]"
    if default is REQUIRED:
        return "required"
    return default if isinstance(default, str) else json.dumps(default)


def reference() -> list[dict[str, str]]:
    """Return one row for each setting: key, allowed values, default and meaning."""
    return [
        {
            "key": ".".join(path),
            "allowed": row.kind.allowed,
            "default": default_text(row.default),
            "meaning": row.meaning,
        }
        for path, row in LEAVES.items()
    ]


def markdown_page() -> str:
    """Return the reference page."""
    rows = [
        f"| `{row['key']}` | {row['allowed']} | `{row['default']}` | {row['meaning']} |".replace("||", "\\|\\|")
        for row in reference()
    ]
    refused = [
        f"| `{name}` | {fixed.why}" + (f" (always `{'` or `'.join(fixed.values)}`) |" if fixed.values else " |")
        for name, fixed in FIXED.items()
    ]
    files = FILES.format(names=", ".join(f"`{name}`" for name in sorted(FILED)))
    return INTRODUCTION + "\n".join(rows) + "\n" + files + REFUSED + "\n".join(refused) + "\n"
