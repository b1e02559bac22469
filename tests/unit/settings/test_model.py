"""What follows from good settings: units, names, ladder, delays, defaults."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from reconsume.sidecar.settings.addresses import Listen, is_loopback
from reconsume.sidecar.settings.deliver import Tls
from reconsume.sidecar.settings.group_policy import overridden
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.sidecar.settings.table import parse_size, render_size
from reconsume.topics.levels import SIX, TABLE, few_levels
from tests.support.sidecar.settings import good


def test_the_defaults_are_those_of_the_interface(tmp_path: Path) -> None:
    settings = good(tmp_path)
    deliver, retry = settings.deliver, settings.retry
    assert (deliver.mode, deliver.concurrency, deliver.timeout, deliver.order) == ("push", "auto", 30_000, "none")
    assert (deliver.batch.max_size, deliver.batch.max_wait, deliver.envelope) == (1, 0, False)
    assert (retry.max_reconsume_times, retry.ladder, retry.levels) == (16, "rocketmq", None)
    assert (retry.ordered_interval, retry.ordered_max_times, retry.nack_redelivery_delay) == (1000, None, 60_000)
    assert (retry.max_deaths, settings.pull.min_invisible, settings.start) == (3, 10_000, "earliest")
    assert (settings.drain_timeout, settings.lock_timeout) == (None, None)
    assert (settings.log.level, settings.log.format, settings.policy_mode) == ("info", "json", "agreed")
    assert (settings.api.listen, settings.api.probe_listen) == (Listen("127.0.0.1", 8471), Listen("0.0.0.0", 8472))
    view = settings.view
    assert (view.enabled, view.source, view.folder) == (False, "events", None)


def test_labels_say_who_a_group_belongs_to(tmp_path: Path) -> None:
    assert good(tmp_path).labels == ()
    settings = good(tmp_path, "labels={team: payments, channel: '#payments'}")
    assert settings.labels == (("team", "payments"), ("channel", "#payments"))
    assert good(tmp_path, "labels.team=orders").labels == (("team", "orders"),)
    assert heartbeat_of(settings).labels == {"team": "payments", "channel": "#payments"}


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = good(tmp_path)
    with pytest.raises(FrozenInstanceError):
        settings.group = "other"
    with pytest.raises(FrozenInstanceError):
        settings.retry.max_deaths = 9


LADDER = "retry.ladder=[7s, 1h30m, 7s]"
LEVELS = {
    "the ladder's": ((), (7_000, 5_400_000)),
    "the ladder's, by name": (("retry.levels=ladder",), (7_000, 5_400_000)),
    "a list as it stands": (("retry.levels=[1s, 1m]",), (1_000, 60_000)),
    "the table's as well": (("retry.levels=table",), tuple(sorted({*TABLE, 7_000, 5_400_000}))),
    "the ladder's in relay mode": (("deliver={mode: relay}",), (7_000, 5_400_000)),
    "none in place": (("deliver.order=key",), ()),
    "a list in place": (("deliver.order=key", "retry.levels=[1m]"), (60_000,)),
}


@pytest.mark.parametrize(("sets", "delays"), LEVELS.values(), ids=LEVELS)
def test_which_delays_have_a_level_topic(tmp_path: Path, sets: tuple[str, ...], delays: tuple[int, ...]) -> None:
    settings = good(tmp_path, LADDER, *sets)
    assert settings.ladder.delays == (7_000, 5_400_000, 7_000)
    assert settings.delays == delays


@pytest.mark.parametrize(
    ("sets", "delays"),
    [
        ((), SIX),
        (("deliver={mode: relay}",), SIX),
        (("retry.rules=[{name: late, ladder: [7s, 1d]}]",), SIX),
        (("retry.levels=ladder",), TABLE[2:]),
        (("retry.ladder=pulsar",), few_levels(TABLE)),
    ],
)
def test_the_default_ladder_has_six_levels_and_a_longer_one_at_most_eight(
    tmp_path: Path, sets: tuple[str, ...], delays: tuple[int, ...]
) -> None:
    assert good(tmp_path, *sets).delays == delays


@pytest.mark.parametrize(
    ("sets", "release", "drain"),
    [
        ((), 35_000, 35_000),
        (("deliver.timeout=2m",), 125_000, 125_000),
        (("topics=[{name: a, timeout: 1m}, b]",), 65_000, 65_000),
        (("deliver.timeout=15m",), 290_000, 290_000),
        (("deliver.timeout=15m", "kafka={bootstrap.servers: 'b:1', max.poll.interval.ms: 3600000}"), 905_000, 905_000),
        (("kafka={bootstrap.servers: 'b:1', max.poll.interval.ms: 10500, session.timeout.ms: 6000}",), 1_000, 1_000),
        (("lock_timeout=7s",), 7_000, 7_000),
        (("lock_timeout=7s", "drain_timeout=9s"), 7_000, 9_000),
    ],
)
def test_a_release_and_a_drain_wait_for_the_longest_delivery_unless_they_are_set(
    tmp_path: Path, sets: tuple[str, ...], release: int, drain: int
) -> None:
    settings = good(tmp_path, *sets)
    assert (settings.release_wait, settings.drain_wait) == (release, drain)


def test_a_release_follows_the_timeout_of_the_policy(tmp_path: Path) -> None:
    longer = overridden(good(tmp_path), {"timeout": "1m"})
    assert (longer.release_wait, longer.drain_wait) == (65_000, 65_000)
    fixed = overridden(good(tmp_path, "lock_timeout=7s"), {"timeout": "1m"})
    assert (fixed.release_wait, fixed.longest_release) == (7_000, 7_000)


def test_names_follow_group_and_prefix(tmp_path: Path) -> None:
    assert good(tmp_path).names.level(10_000, "orders") == "billing-RETRY-10s"
    assert good(tmp_path, "topic_prefix={topic}-{group}").names.dlq("orders") == "orders-billing-DLQ"


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "http://127.0.0.5/x?y=1",
        "http://[::1]:8080/events",
        "https://localhost:8443/events",
        "unix:/run/app/app.sock:/events",
    ],
)
def test_local_urls_are_taken(tmp_path: Path, url: str) -> None:
    assert good(tmp_path, f"deliver.url={url}").deliver.url == url


def test_a_remote_url_is_taken_where_it_is_allowed(tmp_path: Path) -> None:
    assert good(tmp_path, "deliver.url=http://example.com/", "deliver.allow_remote=true").deliver.allow_remote


def test_certificates_are_taken_with_an_https_url(tmp_path: Path) -> None:
    sets = ("deliver.url=https://example.com/", "deliver.allow_remote=true", "deliver.tls.ca_file=/ca")
    assert good(tmp_path, *sets, RECONSUME_DELIVER__TLS__CERT_FILE="/crt").deliver.tls == Tls(
        ca_file="/ca", cert_file="/crt"
    )
    health = ("deliver.health_url=https://localhost/health", "deliver.tls.ca_file=/ca")
    assert good(tmp_path, *health).deliver.tls.ca_file == "/ca"


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("[::1]:8471", Listen("::1", 8471)),
        ("localhost:0", Listen("localhost", 0)),
        ("unix:/run/api.sock", Listen("", 0, "/run/api.sock")),
    ],
)
def test_addresses_to_listen_on(tmp_path: Path, text: str, listen: Listen) -> None:
    assert good(tmp_path, f"api.listen={text}").api.listen == listen


def test_an_open_api_is_taken_with_a_token(tmp_path: Path) -> None:
    assert good(tmp_path, "api.listen=0.0.0.0:8471", "api.token_file=/t").api.listen.host == "0.0.0.0"


def test_probes_may_share_the_apis_listener(tmp_path: Path) -> None:
    assert good(tmp_path, "api.probe_listen=null").api.probe_listen is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.com", "localhost.example.com", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(("text", "count"), [("0B", 0), ("1B", 1), ("64KiB", 65_536), ("2GiB", 1 << 31)])
def test_sizes_come_back_as_they_were_written(text: str, count: int) -> None:
    assert parse_size(text) == count
    assert render_size(count) == text
