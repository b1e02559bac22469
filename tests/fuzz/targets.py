"""The parsers, each as a function of bytes that fails where a promise is broken, and good bytes to begin with."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from reconsume.sidecar.core.progress_codec import decode as decode_progress
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.delivery.push.response_reader import ResponseReader
from reconsume.sidecar.delivery.verdict import VerdictRules
from reconsume.sidecar.deploy.manifest_file import change_all
from reconsume.sidecar.deploy.workload import annotations_of, with_sidecar
from reconsume.sidecar.dlq.archive import ImportedError, import_line
from reconsume.sidecar.dlq.preview import preview
from reconsume.sidecar.dlq.redrive_history import decode_past
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.group_policy import overridden
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.settings.yaml_text import read_yaml
from reconsume.topics.events import BadEvent, decode_event
from reconsume.topics.foreign_headers import SYSTEMS, foreign_life, read_foreign
from reconsume.topics.names import LEGAL_NAMES
from reconsume.topics.policy_record import BadRecord, PolicyHeard, parse_record
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import LARGEST_LONG, BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.view_record import BadRow, decode_view
from tests.fuzz.http_calls import CALLS, Caller
from tests.support.sidecar.settings import GOOD, write_good

GROUP = "billing"
LIFE = RetryState(
    "orders:3:1024", "orders", 2, 1, 1_763_690_000_000, 1_763_690_010_000, 1_763_690_000_000, "http-500: no"
)
NOW = Now(1_763_690_000_000, 0)
EVENT = {
    "group": GROUP,
    "id": "orders:3:1024",
    "state": "WAITING_RETRY",
    "times": 1,
    "redrives": 0,
    "level": "10s",
    "due": 1,
    "at": 2,
    "reason": "http-500",
    "topic": "orders",
    "partition": 3,
    "offset": 1024,
    "timestamp": 3,
    "first_failed_at": 4,
    "instance": "pod-0",
    "v": 1,
}
ROW = {**EVENT, "last_failed_at": 5, "retries": 1, "updated_at": 6}
SUMS = {
    "group": GROUP,
    "minute": 1_763_689_980_000,
    "topic": "orders",
    "level": "10s",
    "reason": "http-500",
    "waiting": 12,
    "committed": 3,
    "dead": 0,
    "redriven": 0,
    "v": 1,
}
POLICY = {"v": 1, "policy": {"ladder": ["1s", {"initial": "1s"}], "timeout": "5s"}, "who": "a", "at": 1, "was": {}}
HEARTBEAT = {"v": 1, "subscription": {"orders": "*"}, "at": 1, "pace": {"state": "open", "since": 1}, "overdue": 2}
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 36\r\n\r\n"
    b'{"verdict": "retry", "delay": "90s"}',
    b"HTTP/1.1 503 Busy\r\nRetry-After: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 500 No\r\nReconsume-Verdict: dead-letter; reason=bad-sku\r\nContent-Length: 0\r\n\r\n",
)
ALIASES = b"a: &a [1, {b: 2}]\nretry: {levels: [1s], ladder: *a}\nb: &b {c: 1}\nd: {<<: *b}\n"
MANIFEST = b"""apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  template: &t
    metadata: {annotations: {reconsume.io/group: billing, reconsume.io/config-map: c}}
    spec: {containers: [{name: a, image: "x:1"}]}
---
kind: List
items: []
"""


class Target(NamedTuple):
    """A parser, and what it reads when all is well."""

    feed: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def _encoded(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def _settings() -> Settings:
    with TemporaryDirectory() as folder:
        return load(write_good(Path(folder)), (), {})


SETTINGS = _settings()
RULES = build_policy(SETTINGS, "pod-0")


def headers_of(data: bytes) -> Headers:
    """Lines of `name=value`; without the sign the value is null."""
    pairs = [line.partition(b"=") for line in data.split(b"\n")]
    return [(name.decode("utf-8", "replace"), value if sign else None) for name, sign, value in pairs]


def text_of(headers: Headers) -> bytes:
    return b"\n".join(name.encode() + b"=" + (value or b"") for name, value in headers)


def headers(data: bytes) -> None:
    """Ours, and those of other systems."""
    given = headers_of(data)
    life = parse_retry_headers(given, LEGAL_NAMES, LARGEST_LONG)
    assert (
        isinstance(life, BadHeader)
        or parse_retry_headers(render_retry_headers(life, GROUP, "t"), LEGAL_NAMES, LARGEST_LONG) == life
    )
    foreign = read_foreign(given, SYSTEMS)
    assert foreign is None or foreign_life(foreign, ("orders", 0, 1), 0, 1)


def events(data: bytes) -> None:
    """An event, a row, sums."""
    for found in (decode_event(data), decode_view(GROUP, b"orders:3:1024", data)):
        assert not isinstance(found, BadEvent | BadRow) or 0 < len(found.text) < 500


def policy(data: bytes) -> None:
    """A policy, taken or refused; a heartbeat; and a key."""
    for key in (b"policy", b"instance/a", data[:300]):
        heard = parse_record(key, data)
        assert not isinstance(heard, BadRecord) or 0 < len(heard.text) < 500
        if isinstance(heard, PolicyHeard) and heard.record is not None:
            with suppress(ConfigError):
                overridden(SETTINGS, heard.record.policy)


def answers(data: bytes) -> None:
    """What a service answers, in two reads."""
    reading = ResponseReader(VerdictRules(), lambda: NOW, {}, lambda kinds: None)
    assert reading.feed(data[: len(data) // 2]) or reading.feed(data[len(data) // 2 :]) or reading.end_response()


def yaml_text(data: bytes) -> None:
    """A configuration."""
    text = data.decode("utf-8", "replace")
    assert read_yaml(text) is not None
    with TemporaryDirectory() as folder, suppress(ConfigError):
        (Path(folder) / "reconsume.yaml").write_text(text, encoding="utf-8", errors="replace")
        load(Path(folder) / "reconsume.yaml", (), {})


def manifests(data: bytes) -> None:
    """What a sidecar is put into."""
    with suppress(ConfigError):
        change_all(
            "x", data.decode("utf-8", "replace"), lambda document: with_sidecar(document, annotations_of(document))
        )


def imports(data: bytes) -> None:
    """A line of an exported file."""
    with suppress(ImportedError):
        import_line(data, RULES)


def kept(data: bytes) -> None:
    """What is kept with committed offsets; and a look at a value."""
    text = data.decode("latin-1")
    decode_progress(Partition("orders", 3), 17, text)
    decode_past(text)
    assert len(preview(data)["shown"]) <= 4_096


LETTER = {
    "v": 1,
    "timestamp": 5,
    "key_base64": "aw==",
    "value_base64": None,
    "id": "",
    "reason": "",
    "place": "",
    "headers": [["RECONSUMETIMES", "Mg=="], ["REAL_TOPIC", "b3JkZXJz"], ["own", None]],
}
TARGETS: dict[str, Target] = {
    "headers": Target(
        headers,
        (
            text_of(render_retry_headers(LIFE, GROUP, "billing-RETRY-10s")),
            b"kafka_dlt-original-topic=orders\nretry_topic-attempts=\x00\x00\x00\x02\nRECONSUMETIMES=1\na",
        ),
    ),
    "events": Target(events, _encoded(EVENT, ROW, SUMS)),
    "policy": Target(policy, _encoded(POLICY, HEARTBEAT)),
    "answers": Target(answers, ANSWERS),
    "calls": Target(Caller(), CALLS),
    "yaml": Target(yaml_text, (GOOD.encode(), ALIASES, b"topics: [x]\n? y\n: z\n")),
    "manifests": Target(manifests, (MANIFEST,)),
    "imports": Target(imports, _encoded(LETTER)),
    "kept": Target(kept, (b"rc1.0.", b"rd1.c%1E4", b'{"a": [1, {"b": null}]}', b"2;5;0;AAAA")),
}
