"""The reference of all settings, made from the table: the JSON Schema, rows for a table, and the page in `docs/`.

`config schema` prints them. Tests compare them with docs/config.schema.json and docs/configuration.md.
"""

from __future__ import annotations

import json
from typing import Any

from reconsume.sidecar.settings.checks import CHANGED, CONFLICTS
from reconsume.sidecar.settings.kafka import FILED, FIXED
from reconsume.sidecar.settings.load import BASE, OF_ONE_GROUP
from reconsume.sidecar.settings.model import LEAVES, Settings
from reconsume.sidecar.settings.modes import IGNORED
from reconsume.sidecar.settings.table import REQUIRED, schema_of

SCHEMA_ID = "urn:reconsume:config"
"""The schema's name. It is no address: `init` writes the schema of its own version next to the file."""
SCHEMA_FILE = "reconsume.schema.json"
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""The first line of a configuration, by which editors find the schema next to it."""
BASE_MEANING = (
    "The path of a file that this one extends, relative to it. Sections are merged by key, and what is in this file "
    "wins; a list replaces that of the base. In Kubernetes the base is another key of the ConfigMap. It has no base "
    "itself."
)
INTRODUCTION = f"""\
# Configuration

Made from the settings by `reconsume config schema --markdown`; a test fails when it is not current.

One YAML file (`-c`, default `reconsume.yaml`), overridden by the environment (`RECONSUME_RETRY__MAX_RECONSUME_TIMES=3`:
`__` between levels; `RECONSUME_KAFKA__BOOTSTRAP_SERVERS` is `bootstrap.servers`), overridden by
`--set retry.max_reconsume_times=3`. All faults are reported together, and the exit code is 78. Durations are written
`500ms`, `10s`, `1h30m`, sizes `64KiB`, `16MiB`; a number without a unit is refused. A section with a key `enabled` may
be true or false alone: `ui: true`.

## A base for several files

`base: common.yaml`: {BASE_MEANING} [many-groups.md](many-groups.md) has an example.

Several `-c` are several groups in one process, and no layers
([many-groups.md](many-groups.md#one-sidecar-for-several-groups)). `api`, `log`, `ui`, `operators`, `view.folder`,
`deliver.buffer_memory` and `drain_timeout` are then settings of the process: one file has them, or all have the same
value. A variable or `--set` may give these, and no others.

## Settings

| key | allowed | default | meaning |
|---|---|---|---|
"""
MODES = """
## Settings without effect

A mode of delivery does not use every setting. `reconsume config check` warns about each one that is written where it
has no effect, even with its default; `null` counts as not written. Some are refused (78) unless they have their
default. With `deliver.order`, the values `ladder` and `table` of `retry.levels` have no effect either.

| while | has no effect | is refused |
|---|---|---|
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
    """Return the JSON Schema of the configuration file. What a file with a base lacks, the base may have; one with
    `ui.groups` needs neither `group` nor `topics`."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    schema = schema_of(Settings)
    properties = dict(schema["properties"])
    kafka = dict(properties["kafka"])
    required, of_kafka = schema.pop("required"), {"kafka": {"required": kafka.pop("required")}}
    base = {"description": BASE_MEANING, "type": "string", "pattern": r"^(?!/)(?!.*://).*\S"}
    many = {"type": "object", "properties": {"groups": {"type": "array", "minItems": 1}}, "required": ["groups"]}
    one_group = [{"required": list(path)} for path in OF_ONE_GROUP]
    return {
        "$schema": draft,
        "$id": SCHEMA_ID,
        "title": "reconsume.yaml",
        **schema,
        "properties": {BASE: base, **properties, "kafka": kafka},
        "if": {"required": [BASE]},
        "else": {
            "if": {"properties": {"ui": many}, "required": ["ui"], "not": {"anyOf": one_group}},
            "then": {"required": [name for name in required if (name,) not in OF_ONE_GROUP], "properties": of_kafka},
            "else": {"required": required, "properties": of_kafka},
        },
    }


def schema_text() -> str:
    """Return the schema as it is printed, and as `init` writes it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False)


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


def by_mode() -> dict[str, tuple[list[str], list[str]]]:
    """Return the settings that `config check` warns about, and those that it refuses, by when that is, in words."""
    by_condition: dict[str, tuple[list[str], list[str]]] = {}
    for column, table in enumerate((IGNORED, CONFLICTS)):
        for one in (one for one in table if not set(one.settings) & one.when.keys()):
            when = " and ".join(
                f"`{name}` is set" if value is CHANGED else f"`{name}: {default_text(value)}`"
                for name, value in one.when.items()
            )
            by_condition.setdefault(when, ([], []))[column].extend(f"`{name}`" for name in one.settings)
    return by_condition


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
    modes = [f"| {when} | {', '.join(named)} | {', '.join(refused)} |" for when, (named, refused) in by_mode().items()]
    files = FILES.format(names=", ".join(f"`{name}`" for name in sorted(FILED)))
    return (
        INTRODUCTION
        + "\n".join(rows)
        + "\n"
        + MODES
        + "\n".join(modes)
        + "\n"
        + files
        + REFUSED
        + "\n".join(refused)
        + "\n"
    )
