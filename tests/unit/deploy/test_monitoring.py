"""Alerts and dashboard: they parse, name what is exported, and the rules do what they say (promtool)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from reconsume.sidecar.groups.survey import Backlog, GroupRow
from reconsume.sidecar.ui.groups_app import RowsCollector
from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.metrics import Queries
from reconsume.spark.job.metrics import JobMetrics
from tests.support.kubernetes.promql import (
    GIVEN,
    MONITORING,
    QUEUED,
    TARGET,
    Exported,
    alerts,
    dashboard,
    exported_by,
    expressions,
    faults,
    uses,
)
from tests.support.sidecar.metrics_world import World, a_world_at_work

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


@pytest.fixture(scope="module")
def exported() -> dict[str, Exported]:
    others = generate_latest(the_views_job()) + generate_latest(the_dashboard())
    known = exported_by((a_world_at_work().scrape() + others).decode())
    queued = exported_by(World(queued=True).scrape().decode())  # only such a group has samples of its queues
    of_queries = exported_by(generate_latest(a_query()).decode())
    known |= {name: known[name]._replace(labels=known[name].labels | one.labels) for name, one in of_queries.items()}
    return known | {name: one for name, one in queued.items() if name in QUEUED}


def a_query() -> CollectorRegistry:
    """What a Spark query exports that consumes."""
    queries, registry = Queries(), CollectorRegistry()
    queries.of(build_rules("billing", ["orders"], name="ship"))
    registry.register(queries)
    return registry


def the_dashboard() -> CollectorRegistry:
    """What the dashboard's process exports of each group that it watches."""
    registry = CollectorRegistry()
    registry.register(RowsCollector([GroupRow("billing", 1, members=0, backlog=Backlog(lag=3, oldest_ms=9_000))]))
    return registry


def the_views_job() -> CollectorRegistry:
    """What the Spark job exports."""
    metrics = JobMetrics()
    metrics.lost("billing-RETRY-EVENTS", 1)
    metrics.groups(["billing"], 0)
    return metrics.registry


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


PLAIN = ROOT / "deploy" / "prometheus"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_the_rules_fire_and_keep_quiet_as_their_tests_say(tmp_path: Path) -> None:
    shutil.copy(PLAIN / "rules.yaml", tmp_path)
    shutil.copy(MONITORING / "rules_test.yaml", tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_to_keep_quiet_and_to_wait() -> None:
    """By the first two tests; behind them stand the incidents, with all alerts of each."""
    tests = yaml.safe_load((MONITORING / "rules_test.yaml").read_text())["tests"][:2]
    for name, rule in alerts().items():
        expected = {
            test["name"]: [bool(case["exp_alerts"]) for case in test["alert_rule_test"] if case["alertname"] == name]
            for test in tests
        }
        waits = [False] if "for" in rule else []
        assert expected == {"each alert fires": [*waits, True], "each alert keeps quiet": [False]}, name


@pytest.mark.parametrize("name", alerts())
def test_each_alert_leads_to_its_page_in_the_runbook(name: str) -> None:
    rule = alerts()[name]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert re.search(rf"^## {name}$", RUNBOOK, re.MULTILINE) is not None  # the anchor is the heading in lower case
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("name", alerts())
def test_an_alert_tells_only_labels_that_it_has(name: str) -> None:
    rule = alerts()[name]
    kept = set.union(*(set(use.labels) for use in uses(rule["expr"])))
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= kept
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"])) <= kept
    assert {"namespace", "group"} <= kept


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_bad_it_is_and_what_to_type_first(name: str) -> None:
    description = alerts()[name]["annotations"]["description"]
    assert re.search(r"First: (kubectl|reconsume) ", description) is not None
    assert "$value" in description or name == "ReconsumeDown"


@pytest.mark.parametrize("name", alerts())
def test_an_alert_is_routed_by_labels_of_the_configuration_and_by_no_name_of_a_job(name: str) -> None:
    expression = alerts()[name]["expr"]
    assert "reconsume_info" in expression
    assert all(label in expression for label in GIVEN)
    assert re.search(r"job\s*[=!]", expression) is None


def test_each_alarm_of_a_page_is_an_alert() -> None:
    """A page that says when to be alarmed names the rule that does it."""
    told = [
        (page.name, line)
        for page in (ROOT / "docs").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"\balarm (when|after|if)\b", line, re.IGNORECASE)
    ]
    assert len(told) >= 3
    assert [one for one in told if not alerts().keys() & set(re.findall(r"`(Reconsume\w+)`", one[1]))] == []


def test_no_alert_waits_long_on_what_a_restart_resets() -> None:
    """Above five minutes a share of time decides: `for` begins again whenever a pod does."""
    assert {rule["for"] for rule in alerts().values() if "for" in rule} <= {"1m", "2m", "5m"}


def test_the_rules_are_an_object_of_the_operator_and_a_file_without_it() -> None:
    document = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert yaml.safe_load((PLAIN / "rules.yaml").read_text()) == document["spec"], "make charts"


def test_what_inhibits_what_names_alerts_and_has_no_circle() -> None:
    """Given the example for Alertmanager, then a page is for a group, and a cause is never silenced by what follows."""
    document = yaml.safe_load((PLAIN / "alertmanager.yaml").read_text())
    follows: dict[str, set[str]] = {}
    for rule in document["inhibit_rules"]:
        assert rule["equal"] == ["namespace", "group"]
        (source,), (target,) = rule["source_matchers"], rule["target_matchers"]
        pattern = re.compile(target.partition("=~")[2].strip(' "') or target.partition("= ")[2])
        follows[source.partition("= ")[2]] = {name for name in alerts() if pattern.fullmatch(name)}
        assert follows[source.partition("= ")[2]], rule
    assert follows.keys() <= alerts().keys()
    left = set(follows)
    while ends := {name for name in left if not follows[name] & left}:
        left -= ends
    assert left == set()


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
