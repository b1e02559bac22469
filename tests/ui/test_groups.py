"""The dashboard of twenty groups on a real broker: the table, the pages one click away, the metrics, what it costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from typer.testing import Result

from reconsume.sidecar.settings import Settings
from reconsume.topics.policy_record import PaceTold
from tests.cli.terminal.test_process import environ
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.running_api import Client
from tests.ui.conftest import MS, Watched
from tests.ui.groups_scene import (
    COUNT,
    DEAD,
    GONE,
    HELD,
    MIXED,
    NEVER,
    OUTAGE,
    WAITS,
    groups_dashboard,
    heartbeat,
    planted_fleet,
    series,
    settings_of_many,
)
from tests.ui.members import member
from tests.ui.scene import Scene, wall
from tests.ui.test_memory import peak
from tests.ui.web import Visitor

KAFKA_WITHIN, HEARTBEATS_WITHIN = 5.0, 20.0
"""Seconds after which the table shows what Kafka says, and what heartbeats say."""
LIMIT = 256
"""MiB."""


class Many(NamedTuple):
    """Twenty groups, the configuration that names them, and their dashboard."""

    groups: list[GroupTopics]
    file: Path
    settings: Settings
    scene: Scene

    def named(self, number: int) -> str:
        return self.groups[number].group

    def row(self, number: int) -> str:
        """The row of the table of one group, as HTML."""
        page = Visitor(self.scene).get("/part/groups").body.decode()
        found = re.search(rf'<tr id="group-{re.escape(self.named(number))}">(.*?)</tr>', page, re.DOTALL)
        return "" if found is None else found[1]


@pytest.fixture(scope="module")
def many(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    folder, token = tmp_path_factory.mktemp("many"), uuid.uuid4().hex[:8]
    with planted_fleet(kafka.bootstrap, token) as groups:
        file, settings = settings_of_many(folder, kafka.bootstrap, f"fleet-{token}-*")
        with groups_dashboard(settings, groups[GONE], folder) as scene:
            shown = Many(groups, file, settings, scene)
            until(lambda: "1m" in shown.row(GONE), SECONDS, "the groups are read")
            yield shown


def call(many: Many, *words: str) -> Result:
    return reconsume(*words, "-c", many.file)


# --- the table --------------------------------------------------------------------------------------------------------


def test_reconsume_groups_says_how_each_group_is_and_needs_only_kafka(many: Many) -> None:
    shown = call(many, "groups", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    rows = {row["group"]: row for row in json.loads(shown.stdout)}
    assert len(rows) == COUNT
    by_number = {number: rows[many.named(number)] for number in range(7)}
    assert {number: row["state"] for number, row in by_number.items()} == {
        NEVER: "never started", GONE: "no member", OUTAGE: "outage", MIXED: "running", DEAD: "running",
        HELD: "no member", WAITS: "no member",
    }  # fmt: skip
    never, gone = by_number[NEVER], by_number[GONE]
    assert (never["not_delivered"], never["lag"], never["started"]) == (None, None, False)
    assert (gone["not_delivered"], gone["lag"], gone["members"]) == (3, 3, 0)
    assert 90 <= gone["oldest_s"] < 600
    assert by_number[OUTAGE]["outage"]["reason"] == "http-503"
    assert by_number[MIXED]["versions"] == ["0.3.0", "0.3.1"]
    assert by_number[MIXED]["labels"] == {"team": "payments"}
    assert "0.3.0, 0.3.1" in by_number[MIXED]["differs"][0]
    assert by_number[DEAD]["dead_letters"] == 2, "of three one is dismissed"
    assert by_number[HELD]["holds"] == 1
    assert (by_number[WAITS]["waiting"], by_number[WAITS]["not_delivered"]) == (2, 0)


def test_a_command_about_one_group_takes_its_name_and_finds_its_topics(many: Many) -> None:
    dead = many.named(DEAD)
    letters = call(many, "dlq", "list", "--group", dead)
    assert (letters.exit_code, len(letters.stdout.splitlines())) == (0, 2)
    assert call(many, "topics", "check", "--group", dead).exit_code in (0, 1)
    checks = call(many, "doctor", "--group", dead, "-o", "json").stdout
    assert {"kafka", "topics", "policy"} <= {row["check"] for row in json.loads(checks)}
    assert "service" not in {row["check"] for row in json.loads(checks)}, "it is elsewhere"
    values = call(many, "policy", "show", "--group", dead, "-o", "json")
    assert (values.exit_code, "group =" in values.stderr) == (0, False)
    without = call(many, "holds")
    assert (without.exit_code, "--group NAME" in without.stderr) == (78, True)
    unknown = call(many, "holds", "--group", f"{dead[:-1]}x")
    assert (unknown.exit_code, "did you mean" in unknown.stderr) == (1, True)
    held = call(many, "hold", "--group", many.named(WAITS), "--all", "--for", "1h", "--why", "a test", "--dry-run")
    assert held.exit_code == 0, held.stderr


def test_a_name_without_a_policy_topic_is_a_row_that_says_so(many: Many) -> None:
    shown = call(many, "groups", "--set", f"ui.groups=[nowhere, {many.named(DEAD)}]")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (shown.exit_code, [row["state"] for row in rows]) == (1, ["running", "unknown"])
    assert "missing, or not for this user to see" in rows[1]["problem"]


def test_the_table_follows_kafka_within_5_s_and_heartbeats_within_20_s(many: Many) -> None:
    """When records, a member, a dead letter and an outage come, then the table has them in time."""
    group, began = many.groups[9], time.monotonic()
    produce(group.bootstrap, group.main, [b"one", b"two"])
    until(lambda: ">2" in many.row(9), KAFKA_WITHIN, "two records are not delivered")
    with member(group, "pod-0"):
        until(lambda: "running" in many.row(9), KAFKA_WITHIN, "the group has a member")
        heartbeat(group, "pod-0", pace=PaceTold("outage", wall(), 1, 1, "connection refused"))
        until(lambda: "connection refused" in many.row(9), HEARTBEATS_WITHIN, "the outage is shown")
    until(lambda: "no member" in many.row(9), KAFKA_WITHIN, "the member has gone")
    assert time.monotonic() - began < SECONDS


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_prometheus_reads_members_lag_and_age_by_any_name_and_without_a_sign_in(many: Many) -> None:
    port = urlsplit(many.scene.url).port or 0
    with Client(port) as client:
        client.send(b"GET /metrics HTTP/1.1\r\nhost: 10.1.2.3:8473\r\n\r\n")
        answer = client.answer("GET")
    assert answer.status == 200
    found = series(answer.body.decode())
    gone, never = many.named(GONE), many.named(NEVER)
    assert found["reconsume_group_members", gone] == 0
    assert found["reconsume_group_lag", gone] == 3
    assert found["reconsume_group_undelivered_seconds", gone] >= 90
    assert found["reconsume_group_members", many.named(DEAD)] == 1
    assert found["reconsume_group_undelivered_seconds", many.named(DEAD)] == 0
    assert not any(group == never for _, group in found), "a group that never ran has no series"
    with Client(port) as client:
        client.send(b"GET / HTTP/1.1\r\nhost: 10.1.2.3:8473\r\n\r\n")
        assert client.answer("GET").status == 421


# --- the pages of a group ---------------------------------------------------------------------------------------------


def test_whoever_has_signed_in_once_acts_in_every_group_and_the_log_names_the_group(many: Many, tmp_path: Path) -> None:
    with groups_dashboard(many.settings, many.groups[DEAD], tmp_path, far=True, base_path="/tools") as scene:
        visitor = Visitor(scene)
        for path in ("/tools/", f"/tools/groups/{many.named(DEAD)}/"):
            refused = visitor.get(path)
            assert (refused.status, refused.headers["location"]) == (303, "/tools/sign-in")
        assert visitor.get("/tools/metrics").status == 200
        signed = visitor.post("/tools/sign-in", {"who": "alice", "token": "a-token-for-tests"})
        assert (signed.status, signed.headers["location"]) == (303, "/tools/")
        page = visitor.get(f"/tools/groups/{many.named(HELD)}/holds").body.decode()
        csrf = re.search(r'name="csrf" value="([^"]+)"', page)
        assert csrf is not None
        assert "migration" in page
        assert f'action="/tools/groups/{many.named(HELD)}/holds/begin"' in page
        fields = {"csrf": csrf[1], "topic": many.groups[WAITS].main, "for": "20m", "why": "a test"}
        begun = visitor.post(f"/tools/groups/{many.named(WAITS)}/holds/begin", fields)
        assert begun.status in (200, 303), begun.body
        assert many.named(WAITS) in {json.loads(line).get("group") for line in scene.audit.read_text().splitlines()}
        activity = visitor.get(f"/tools/groups/{many.named(DEAD)}/activity").body.decode()
        assert "a test" not in activity
        assert visitor.get("/tools/groups/other/").headers["location"] == "/tools/"
        find = visitor.get(f"/tools/groups/{many.named(DEAD)}/records?find=x").body.decode()
        assert f"groups/{many.named(DEAD)}/" in find


def test_a_browser_goes_from_the_table_to_a_group_and_back(chromium: Any, many: Many) -> None:
    context = chromium.new_context(base_url=many.scene.url)
    context.set_default_timeout(MS)
    page = context.new_page()
    watched = Watched(page, many.scene.url)
    page.goto("/")
    assert page.locator("#groups tbody tr").count() == COUNT
    assert "no member" in page.locator(f"#group-{many.named(GONE)}").inner_text()
    assert "never started" in page.locator(f"#group-{many.named(NEVER)}").inner_text()
    assert re.search(r"outage\s+for", page.locator(f"#group-{many.named(OUTAGE)}").inner_text())
    produce(many.groups[11].bootstrap, many.groups[11].main, [b"x"] * 4)
    page.wait_for_selector(f"#group-{many.named(11)} td[data-label='Not delivered']:has-text('4')")
    page.locator(f"#dead-{many.named(DEAD)}").click()
    page.wait_for_url(f"**/groups/{many.named(DEAD)}/dlq")
    assert page.locator("table.letters tbody tr").count() == 2
    page.get_by_role("link", name="Group", exact=True).click()
    page.wait_for_url(f"**/groups/{many.named(DEAD)}/")
    page.locator("#fleet tr", has_text="pod-0").wait_for()
    page.get_by_role("link", name="All groups").click()
    page.wait_for_selector("#groups")
    page.set_viewport_size({"width": 360, "height": 740})
    wide = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert (wide <= 360, watched.found) == (True, [])


def test_twenty_groups_of_which_each_was_looked_at_stay_below_256_mib(many: Many) -> None:
    words = [sys.executable, "-m", "reconsume.sidecar", "ui", "-c", str(many.file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, env=environ(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/, read-only", process.stderr.readline())
            assert found is not None

            def get(path: str) -> bytes:
                with Client(int(found[1])) as client:
                    return client.call("GET", path).body

            until(lambda: get("/").count(b'<tr id="group-') == COUNT, SECONDS, "all groups are shown")
            for group in many.groups[2:]:
                assert b"<title>" in get(f"/groups/{group.group}/")
                assert b"<title>Dead letters" in get(f"/groups/{group.group}/dlq")
            used = peak(process.pid)
            sys.stdout.write(f"{used:.0f} MiB\n")
            assert used < LIMIT
        finally:
            process.kill()
