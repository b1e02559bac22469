"""What the instances of a group agree on: which of their settings apply to all of them (contract 10.7). Pure.

Each distinct set of agreed values has one record in the policy topic, `settings/<digest>`, with a rank that is greater
than every rank its first writer had read, and never changes. Each heartbeat names the digest of its instance's
configuration. Of the settings that a live instance names, those with the greatest rank apply to all: the newest, by
their first appearance. So a restart of an old pod overrides nothing, and after a rollback the old values apply again.

The sidecar's fold (`group_policy/state.py`) and a Spark consumer (`spark/consumer/following.py`) both ask
`newest_first`. Records are untrusted: the digest is computed from the values, and a record under another key is none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from reconsume.topics import versions

SETTINGS = b"settings/"
"""The prefix of the key of a settings record, before the digest of its values."""
MOST_DIGESTS = 64
"""Settings records that a reader keeps."""
SILENT_AFTER = 180_000
"""ms, three times the heartbeat. An instance that was silent for so long is gone and does not count."""
WRITTEN_EVERY = 24 * 3_600_000
"""ms after which an instance writes the record of its settings again, unchanged: so its age says when it was last
needed."""
KEPT_FOR = 31 * 24 * 3_600_000
"""ms after which nobody has needed a settings record for 30 days, and any instance deletes it."""
LARGEST_RANK = 2**63 - 1

Values: TypeAlias = Mapping[str, object]


class SettingsRecord(msgspec.Struct, frozen=True):
    """The values of all agreed keys, as they are written in YAML, and their rank."""

    values: dict[str, Any]
    rank: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_RANK)]
    v: Literal[1] = 1


class SettingsHeard(msgspec.Struct, frozen=True):
    """The settings with this digest. `record` is None if it was deleted."""

    digest: str
    record: SettingsRecord | None


class LiveSettings(NamedTuple):
    """Settings that live instances have, with the names of these instances."""

    digest: str
    record: SettingsRecord
    instances: tuple[str, ...]


def digest_of(values: Values) -> str:
    """Return the digest of agreed values, which does not depend on the order of the keys."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def newest_first(records: Mapping[str, SettingsRecord], named: Mapping[str, str]) -> tuple[LiveSettings, ...]:
    """Return the settings that instances name, those first that apply to all.

    `records`: by digest. `named`: the digest that each live instance names; empty where it has no part in this. A
    digest without a record does not count. Of equal ranks the greater digest wins.
    """
    having: dict[str, list[str]] = {}
    for instance, digest in sorted(named.items()):
        if digest in records:
            having.setdefault(digest, []).append(instance)
    order = sorted(having, key=lambda digest: (records[digest].rank, digest), reverse=True)
    return tuple(LiveSettings(digest, records[digest], tuple(having[digest])) for digest in order)


def next_rank(records: Mapping[str, SettingsRecord]) -> int:
    """Return the rank of settings that appear for the first time."""
    return min(max((record.rank for record in records.values()), default=0) + 1, LARGEST_RANK)


def settings_key(digest: str) -> bytes:
    """Return the key of the record of the settings with this digest."""
    return SETTINGS + digest.encode()


def render_settings(record: SettingsRecord) -> bytes:
    """Return the record's value, as JSON."""
    return msgspec.json.encode(record)


_DECODER = msgspec.json.Decoder(SettingsRecord)


def read_settings(key: bytes, value: bytes | None) -> SettingsHeard | str:
    """Return the content of a settings record, or why it is none, as one sentence. Never raises."""
    digest = key[len(SETTINGS) :].decode("ascii", errors="replace")
    if value is None:
        return SettingsHeard(digest, None)
    record = versions.decoded(_DECODER, value, "the value is")
    if isinstance(record, str):
        return record
    if digest_of(record.values) != digest:
        return "the key of settings is not the digest of their values"
    return SettingsHeard(digest, record)
