"""Alerts and dashboard: they parse, name what is exported, and the rules do what they say (promtool)."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected
from reconsume.sidecar.core.record import Partition
from reconsume.spark.job.liveness import Liveness
from reconsume.spark.job.meters import Meters
from tests.support.kubernetes.promql import (
    MONITORING,
    TARGET,
    Exported,
    alerts,
    dashboard,
    exported_by,
    expressions,
    faults,
    uses,
)
from tests.support.sidecar.metrics_world import World, fresh

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
EXPRESSIONS = expressions()
PROMTOOL = shutil.which("promtool")
SCRAPE = """\
# TYPE reconsume_x_total counter
reconsume_x_total{topic="a"} 1
# TYPE reconsume_y gauge
reconsume_y{level="a"} 1
"""


def a_world_at_work() -> World:
    """One that has a sample of everything."""
    world = World()
    world.told["view_lag"] = 1
    world.ends[Partition("orders", 0)] = 9
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(3)))
    for outcome in (COMMITTED, Failed("http-500"), Rejected("http-422")):
        world.outside.answer(outcome)
    for _ in range(2):  # the first failure went at once, the refusal after it
        world.commit(world.main)
    return world


@pytest.fixture(scope="module")
def exported() -> dict[str, Exported]:
    known = exported_by((a_world_at_work().scrape() + generate_latest(the_views_job())).decode())
    queued = exported_by(World(queued=True).scrape().decode())  # only such a group has samples of its queues
    return queued | {name: one for name, one in known.items() if one.labels or name not in queued}


def the_views_job() -> CollectorRegistry:
    """What the Spark job exports."""
    meters = Meters(("view",), Liveness(("view",), time.monotonic))
    meters.lost("billing-RETRY-EVENTS", 1)
    return meters.registry


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS.items(), ids=list(EXPRESSIONS))
def test_an_expression_asks_only_for_what_is_exported(
    place: str, expression: str, exported: dict[str, Exported]
) -> None:
    assert faults(expression, exported) == [], place


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(reconsume_z_total[5m])", "reconsume_z_total is not exported"),
        ("sum by (level) (rate(reconsume_x_total[5m]))", "reconsume_x_total has no label level"),
        ('rate(reconsume_x_total{level="a"}[5m])', "reconsume_x_total has no label level"),
        ("max by (pod) (reconsume_x_total) > 3", "reconsume_x_total only ever grows: rate or increase is missing"),
        ("increase(reconsume_y[5m])", "reconsume_y is a gauge: its rate means nothing"),
        ("reconsume_y > on (topic) reconsume_y", "reconsume_y has no label topic"),
    ],
)
def test_an_expression_that_asks_for_something_else_is_found_out(expression: str, fault: str) -> None:
    assert fault in faults(expression, exported_by(SCRAPE))


def test_an_expression_that_does_not_parse_is_found_out() -> None:
    with pytest.raises(ValueError, match="paren"):
        uses("sum by (pod) (rate(reconsume_x_total[5m])")


# --- the rules -----------------------------------------------------------------------------------------------------


RULE_TESTS: list[dict[str, Any]] = yaml.safe_load((MONITORING / "rules_test.yaml").read_text())["tests"]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_the_rules_fire_and_keep_quiet_as_their_tests_say(tmp_path: Path) -> None:
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(MONITORING / "rules_test.yaml", tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", alerts())
def test_each_alert_is_tested_to_fire_to_keep_quiet_and_to_wait(name: str) -> None:
    expected = {
        test["name"]: [bool(case["exp_alerts"]) for case in test["alert_rule_test"] if case["alertname"] == name]
        for test in RULE_TESTS
    }
    waits = [False] if "for" in alerts()[name] else []
    assert expected == {"each alert fires": [*waits, True], "each alert keeps quiet": [False]}


@pytest.mark.parametrize("name", alerts())
def test_each_alert_leads_to_its_page_in_the_runbook(name: str) -> None:
    rule = alerts()[name]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert re.search(rf"^## {name}$", RUNBOOK, re.MULTILINE) is not None  # the anchor is the heading in lower case
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("name", alerts())
def test_an_alert_tells_only_labels_that_it_has(name: str) -> None:
    rule = alerts()[name]
    kept = set.intersection(*(set(use.labels) for use in uses(rule["expr"])))
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= kept
    assert {"namespace", "group"} <= kept


def test_the_rules_are_an_object_of_the_operator() -> None:
    document = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")


# --- the dashboard -------------------------------------------------------------------------------------------------


def panels() -> Iterator[dict[str, Any]]:
    yield from dashboard()["panels"]


def test_the_dashboard_asks_for_namespace_group_and_topic() -> None:
    variables = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert variables == ["datasource", "namespace", "group", "topic"]
    told = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert all('namespace=~"$namespace", group=~"$group"' in expression for expression in told)


def test_each_panel_has_its_own_place_and_says_what_it_shows() -> None:
    shown = list(panels())
    assert len({panel["id"] for panel in shown}) == len(shown)
    assert all(panel["description"] for panel in shown if panel["type"] != "row")
    for one, other in combinations([panel["gridPos"] for panel in shown], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_a_panel_that_asks_by_topic_reads_a_metric_with_one(exported: dict[str, Exported]) -> None:
    """Given the variable topic, then every metric that has the label is filtered by it."""
    for panel in panels():
        for target in panel.get("targets", ()):
            for use in uses(target["expr"]):
                assert ("topic" in use.labels) == ("topic" in exported[use.metric].labels), target["expr"]
    assert "topic" not in TARGET
