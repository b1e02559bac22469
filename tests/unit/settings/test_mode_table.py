"""Each setting has an effect in a mode, or is named where it is written: every pair of setting and mode is listed."""

from __future__ import annotations

import dataclasses
import functools
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decide import decide
from reconsume.sidecar.core.outcome import COMMITTED, EXPIRED, NACKED, Failed, Outcome, Postponed, Rejected, Throttled
from reconsume.sidecar.settings.load import STAND_INS, validate
from reconsume.sidecar.settings.model import LEAVES, Settings
from reconsume.sidecar.settings.modes import CHOOSERS, IGNORED, Mode, ignored
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.settings.table import KeyPath
from tests.sim.samples import WALL, life, record

URL: dict[str, object] = {"deliver.url": "http://127.0.0.1:8080/events"}
MODES: dict[Mode, dict[str, object]] = {
    Mode.PUSH: URL,
    Mode.BATCH: {**URL, "deliver.batch.max_size": 8},
    Mode.IN_PLACE: {**URL, "deliver.order": "key"},
    Mode.LADDER: {**URL, "deliver.order": "key", "retry.ordered_ladder": ["10s", "1h"]},
    Mode.PULL: {"deliver.mode": "pull"},
    Mode.RELAY: {"deliver.mode": "relay"},
    Mode.SPARK: {"deliver.mode": "spark"},
    Mode.BROADCAST: {**URL, "deliver.broadcast": True},
}
EVERY = "push batch place ladder pull relay spark broadcast"
SIDECARS = "push batch place ladder pull relay broadcast"
REQUESTS = "push batch place ladder broadcast"
COLUMNS = dict(zip(EVERY.split(), Mode, strict=True))

HAS_EFFECT: dict[str, str] = {
    "group": EVERY,
    "labels": EVERY,
    "topics": EVERY,
    "tags_header": EVERY,
    "kafka_secret": EVERY,
    "kafka": EVERY,
    "start": "push batch place ladder pull",
    "deliver.url": REQUESTS,
    "deliver.health_url": REQUESTS,
    "deliver.health_timeout": REQUESTS,
    "deliver.concurrency": REQUESTS,
    "deliver.rate": "push batch place ladder pull spark broadcast",
    "deliver.group_rate": "push batch place ladder pull spark",
    "deliver.timeout": REQUESTS,
    "deliver.batch.max_bytes": "batch",
    "deliver.batch.on_failure": "batch",
    "deliver.batch.max_wait": "batch",
    "deliver.batch.mix": "batch",
    "deliver.forward_headers": REQUESTS,
    "deliver.idempotency": "push batch place ladder pull broadcast",
    "deliver.content_type": "push place ladder broadcast",
    "deliver.envelope": "push place ladder broadcast",
    "deliver.verdicts": REQUESTS,
    "deliver.outputs": "push batch place ladder pull",
    "deliver.max_answer": REQUESTS,
    "deliver.failure_text": f"{REQUESTS} spark",
    "deliver.dead_letter_statuses": REQUESTS,
    "deliver.throttle_statuses": REQUESTS,
    "deliver.outage_failures": REQUESTS,
    "deliver.outage_interval": REQUESTS,
    "deliver.leave_after": "push batch place ladder pull",
    "deliver.allow_remote": REQUESTS,
    "deliver.tls.ca_file": REQUESTS,
    "deliver.tls.cert_file": REQUESTS,
    "deliver.tls.key_file": REQUESTS,
    "deliver.bearer_token_file": REQUESTS,
    "deliver.signing_secret_file": REQUESTS,
    "deliver.buffer_memory": SIDECARS,
    "retry.max_reconsume_times": "push batch ladder pull relay spark",
    "retry.ladder": "push batch pull relay spark",
    "retry.rules": "push batch place ladder pull relay spark",
    "retry.max_age": "push batch place ladder pull relay spark",
    "retry.jitter": "push batch ladder pull relay spark",
    "retry.levels": "push batch pull relay spark",
    "retry.ordered_interval": "place",
    "retry.ordered_max_times": "place",
    "retry.ordered_exhausted": "ladder",
    "retry.ordered_max_waiting": "place ladder",  # in place, what an earlier ladder left is still read
    "retry.nack_redelivery_delay": "pull",
    "retry.postpone_limit": "push batch place ladder broadcast",
    "retry.share": "push batch place ladder pull",
    "retry.max_deaths": "push batch place ladder pull",
    "retry.unknown_topic": "push batch place ladder pull relay spark",
    "retry.understand": "push batch pull relay",
    "pull.min_invisible": "pull",
    "pull.max_leased": "pull",
    "pull.nack_max_times": "pull",
    "topic_prefix": "push batch place ladder pull relay spark",
    "api.listen": SIDECARS,
    "api.token_file": SIDECARS,
    "api.hosts": SIDECARS,
    "api.probe_listen": SIDECARS,
    "view.source": "push batch place ladder pull relay spark",
    "view.folder": "push batch place ladder pull relay spark",
    "ui.listen": EVERY,
    "ui.read": EVERY,
    "ui.groups": EVERY,
    "ui.hosts": EVERY,
    "ui.base_path": EVERY,
    "operators.token_file": EVERY,
    "operators.audit_file": EVERY,
    "membership": "push batch place ladder pull",
    "policy_mode": "push batch place ladder pull relay",
    "drain_timeout": SIDECARS,
    "lock_timeout": SIDECARS,
    "tracing.enabled": SIDECARS,
    "log.level": EVERY,
    "log.format": EVERY,
}
SAMPLES: dict[str, object] = {
    "pull.nack_max_times": 3,
    "kafka_secret": "/run/secrets/user",
    "deliver.url": "http://127.0.0.1:8080/events",
    "deliver.health_url": "http://127.0.0.1:8080/health",
    "deliver.rate": "100/s",
    "deliver.group_rate": "100/s",
    "deliver.failure_text": "none",
    "deliver.outputs": ["invoices"],
    "deliver.tls.ca_file": "/tls/ca.crt",
    "deliver.tls.cert_file": "/tls/tls.crt",
    "deliver.tls.key_file": "/tls/tls.key",
    "deliver.bearer_token_file": "/run/secrets/token",
    "deliver.signing_secret_file": "/run/secrets/signing",
    "retry.max_age": "1h",
    "retry.levels": "table",
    "retry.ordered_max_times": 3,
    "retry.understand": ["pulsar"],
    "api.token_file": "/run/secrets/token",
    "api.probe_listen": "0.0.0.0:8472",
    "view.folder": "/var/cache/view",
    "ui.read": "open",
    "operators.token_file": "/run/secrets/operators",
    "operators.audit_file": "/var/log/audit",
    "drain_timeout": "30s",
    "lock_timeout": "40s",
}
"""A value for each setting whose default says nothing; the others are written with their default."""
NEEDS: dict[str, dict[str, object]] = {
    "deliver.health_timeout": {"deliver.health_url": "http://127.0.0.1:8080/health"},
    "deliver.tls.ca_file": {"deliver.url": "https://127.0.0.1:8080/events"},
    "deliver.tls.cert_file": {"deliver.url": "https://127.0.0.1:8080/events"},
    "deliver.tls.key_file": {"deliver.url": "https://127.0.0.1:8080/events", "deliver.tls.cert_file": "/tls/tls.crt"},
    "view.folder": {"view.enabled": True},
}
"""What must be set beside a setting where it has an effect."""


def tree_of(values: dict[str, Any]) -> dict[str, Any]:
    """The values as a file has them."""
    tree: dict[str, Any] = {**STAND_INS, "topics": ["orders"]}
    for name, value in values.items():
        *sections, key = name.split(".")
        functools.reduce(lambda below, section: below.setdefault(section, {}), sections, tree)[key] = value
    return tree


def settings_of(values: dict[str, Any]) -> Settings:
    settings, faults = validate(tree_of(values))
    assert settings is not None, faults
    return settings


def is_named(mode: Mode, name: str) -> bool:
    """Whether a setting that is written in a mode is refused or warned about."""
    value = SAMPLES.get(name, LEAVES[tuple(name.split("."))].default)
    expected = COLUMNS_OF[name]
    more = NEEDS.get(name, {}) if mode in expected else {}
    written = {} if name in STAND_INS else {name: value}
    settings, faults = validate(tree_of({**MODES[mode], **more, **written}))
    path: KeyPath = tuple(name.split("."))
    if settings is None:
        assert all(fault.path == path or name == "retry.understand" for fault in faults), faults
        return True
    return path in [fault.path for fault in ignored(settings)]


COLUMNS_OF = {name: {COLUMNS[word] for word in words.split()} for name, words in HAS_EFFECT.items()}


def test_every_setting_is_in_the_list_or_chooses_the_mode() -> None:
    assert HAS_EFFECT.keys() | set(CHOOSERS) == {".".join(path) for path in LEAVES}
    assert not HAS_EFFECT.keys() & set(CHOOSERS)


def mode_of(settings: Settings) -> Mode:
    """The mode in which the group's records are delivered."""
    deliver = settings.deliver
    if deliver.broadcast:
        return Mode.BROADCAST
    if deliver.mode != "push":
        return Mode(deliver.mode)
    if deliver.order != "none":
        return Mode.LADDER if settings.queued else Mode.IN_PLACE
    return Mode.BATCH if deliver.batch.max_size > 1 else Mode.PUSH


@pytest.mark.parametrize("mode", Mode)
def test_each_setting_without_effect_is_refused_or_warned_about_and_no_other(mode: Mode) -> None:
    assert mode_of(settings_of(MODES[mode])) == mode
    named = {name for name in HAS_EFFECT if is_named(mode, name)}
    assert named == {name for name, modes in COLUMNS_OF.items() if mode not in modes}


def test_what_a_broadcast_in_batches_ignores_is_what_both_ignore() -> None:
    settings = settings_of(
        MODES[Mode.BROADCAST]
        | {"deliver.batch.max_size": 8, "deliver.batch.max_wait": "1s", "deliver.envelope": False, "retry.jitter": "1%"}
    )
    assert {".".join(map(str, fault.path)) for fault in ignored(settings)} == {"deliver.envelope", "retry.jitter"}


def test_null_and_what_chooses_the_mode_are_not_warned_about() -> None:
    chosen = {"deliver.order": "none", "deliver.broadcast": False, "deliver.health_url": None, "retry.max_age": None}
    assert list(ignored(settings_of(MODES[Mode.PULL] | chosen))) == []


def test_the_file_of_the_first_user_who_was_misled_is_warned_about() -> None:
    written = {"retry.ladder": ["2s", "5s", "10s"], "retry.max_reconsume_times": 3, "retry.levels": "table"}
    told = {
        ".".join(map(str, fault.path)): fault.text for fault in ignored(settings_of(MODES[Mode.IN_PLACE] | written))
    }
    assert told.keys() == written.keys()
    assert "retry.ordered_max_times" in told["retry.max_reconsume_times"]


@pytest.mark.parametrize("one", IGNORED, ids=lambda one: f"{one.settings[0]}-{next(iter(one.when))}")
def test_every_sentence_says_that_there_is_no_effect(one: Any) -> None:
    assert "has no effect" in one.text
    assert {tuple(name.split(".")) for name in (*one.settings, *one.when)} <= LEAVES.keys()


OTHER: dict[str, object] = {
    "retry.max_reconsume_times": 1,
    "retry.ladder": ["7s", "9s"],
    "retry.rules": [{"name": "all", "dead_letter": True}],
    "retry.max_age": "1s",
    "retry.jitter": "50%",
    "retry.ordered_interval": "7s",
    "retry.ordered_max_times": 1,
    "retry.ordered_exhausted": "park",
    "retry.nack_redelivery_delay": "7s",
    "retry.postpone_limit": "1s",
}
"""Another value for each setting of `retry` that decides about an outcome."""
OUTCOMES: dict[str, list[Outcome]] = {
    "push": [
        COMMITTED,
        Failed("http-500"),
        Failed("retry-asked", level=2),
        Rejected("no"),
        Throttled(1_000),
        Postponed(60_000),
    ],
    "pull": [COMMITTED, Failed("retry-asked"), Failed("retry-asked", level=2), Rejected("no"), EXPIRED, NACKED],
    "relay": [Failed("retry-asked"), Failed("retry-asked", level=2), Rejected("no")],
    "spark": [Failed("ValueError"), Failed("retry-asked", level=2), Rejected("no")],
}
"""The outcomes that each kind of delivery can have."""


def decisions(settings: Settings) -> list[object]:
    """What follows from every outcome at fresh records and at those that failed before."""
    policy = build_policy(settings, "0")
    fresh = record(7)
    later = [record(life=life(times, postponed_at=WALL - 60_000)) for times in (1, 16)]
    records = [fresh, replace(fresh, again=3), *later]
    return [decide(one, outcome, policy, WALL) for one, outcome in product(records, OUTCOMES[settings.deliver.mode])]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", OTHER)
def test_a_setting_decides_about_outcomes_in_exactly_the_modes_where_it_has_an_effect(mode: Mode, name: str) -> None:
    usual, (section, key) = settings_of(MODES[mode]), name.split(".")
    changed = {key: LEAVES[section, key].kind.take(OTHER[name])}
    other = dataclasses.replace(usual, retry=dataclasses.replace(usual.retry, **changed))
    assert (decisions(usual) != decisions(other)) is (mode in COLUMNS_OF[name])
