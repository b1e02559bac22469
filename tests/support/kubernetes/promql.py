"""What PromQL expressions read: their selectors with the labels that they ask for, and the functions around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml
from prometheus_client.parser import text_string_to_metric_families

MONITORING = Path(__file__).parents[3] / "deploy" / "k8s" / "components" / "monitoring"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(reconsume_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
"""A row of the page: a metric, its type and its labels."""
VARIABLES = {"$__rate_interval": "5m", "$namespace": ".*", "$group": ".*", "$topic": ".*"}
"""What Grafana puts in."""
TARGET = frozenset({"namespace", "pod", "job", "container", "instance"})
"""Labels that Prometheus gives each target."""
GIVEN = frozenset({"team", "channel", "runbook"})
"""Labels that a configuration may have, by which alerts are routed."""
OF_COUNTERS = frozenset({"rate", "increase", "irate"})


class Use(NamedTuple):
    """One selector: the metric, the labels that are asked for, there and by aggregations around it, and the functions
    around it."""

    metric: str
    labels: frozenset[str]
    functions: frozenset[str]


class Exported(NamedTuple):
    """What a scrape shows of one sample's name: the type of its family, and its labels."""

    kind: str
    labels: frozenset[str]


def uses(expression: str) -> list[Use]:
    """Every selector of an expression. Raises ValueError when it does not parse."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return list(_uses(promql.parse(expression), frozenset(), frozenset()))


def _uses(node: Any, labels: frozenset[str], functions: frozenset[str]) -> Iterator[Use]:
    match node:
        case promql.VectorSelector():
            own = {matcher.name for matcher in node.matchers.matchers}
            yield Use(node.name or "", labels | own, functions)
        case promql.MatrixSelector():
            yield from _uses(node.vector_selector, labels, functions)
        case promql.Call():
            for argument in node.args:
                yield from _uses(argument, labels, functions | {node.func.name})
        case promql.AggregateExpr():
            by = frozenset(node.modifier.labels) if node.modifier is not None else frozenset[str]()
            yield from _uses(node.expr, labels | by, functions)
        case promql.BinaryExpr():
            matching = getattr(node.modifier, "matching", None)
            on = frozenset(matching.labels) if matching is not None else frozenset[str]()
            many_to_one = getattr(node.modifier, "card", None) == promql.VectorMatchCardinality.ManyToOne
            only_matched = on and (str(node.op) in ("and", "unless") or many_to_one)
            yield from _uses(node.lhs, labels | on, functions)
            yield from _uses(node.rhs, on if only_matched else labels | on, functions)
        case promql.NumberLiteral() | promql.StringLiteral():
            pass
        case _:
            yield from _uses(node.expr, labels, functions)


QUEUED = frozenset(
    f"reconsume_{name}" for name in ("blocked_keys", "behind_records", "parked_keys", "queue_fill_ratio")
)
"""Metrics that have no series but in a group with `retry.ordered_ladder`."""


def faults(expression: str, exported: dict[str, Exported]) -> list[str]:
    """What an expression asks for that is not exported, or means otherwise."""
    found = []
    for metric, labels, functions in uses(expression):
        if metric == "up":
            continue  # Prometheus makes it
        there = exported.get(metric)
        if there is None:
            found.append(f"{metric} is not exported")
            continue
        found += [f"{metric} has no label {label}" for label in sorted(labels - there.labels - TARGET - GIVEN)]
        counts = there.kind in ("counter", "histogram")
        if counts and not functions & OF_COUNTERS and not _compares_ages(expression, metric):
            found.append(f"{metric} only ever grows: rate or increase is missing")
        if not counts and functions & OF_COUNTERS:
            found.append(f"{metric} is a gauge: its rate means nothing")
    return found


def _compares_ages(expression: str, metric: str) -> bool:
    """Whether a young counter is taken as a whole, as `x unless x offset …`."""
    return re.search(rf"{metric}\s+unless\s+{metric}\s+offset", expression) is not None


def exported_by(text: str) -> dict[str, Exported]:
    """By sample name, what a scrape in text form shows."""
    found: dict[str, Exported] = {}
    for family in text_string_to_metric_families(text):
        if not family.samples:  # such as what is left of a reset, in a group that has none
            found[family.name] = Exported(family.type, labels_on_page().get(family.name, frozenset()) | {"group"})
        for sample in family.samples:
            before = found.get(sample.name, Exported(family.type, frozenset()))
            found[sample.name] = Exported(family.type, before.labels | frozenset(sample.labels))
    return found


@cache
def labels_on_page() -> dict[str, frozenset[str]]:
    """By metric, the labels that `docs/metrics.md` names, which `test_metrics_moved` compares with those exported."""
    return {
        name: frozenset(re.findall(r"`(\w+)`", labels))
        for name, _, labels in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    document = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in document["spec"]["groups"] for rule in group["rules"]}


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    loaded: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return loaded


def expressions() -> dict[str, str]:
    """Every expression of alerts, panels, variables and of what scales by Prometheus, by where it stands."""
    found = {f"alert {name}": str(rule["expr"]) for name, rule in alerts().items()}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for path in sorted(MONITORING.parents[1].rglob("scaledobject.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for number, trigger in enumerate(document["spec"].get("triggers", ())):
                if trigger["type"] == "prometheus":
                    found[f"trigger {number} of {path.parent.name}"] = trigger["metadata"]["query"]
    for variable in dashboard()["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable.get("definition", ""))
        if asked is not None:
            found[f"variable {variable['name']}"] = f"sum by ({asked[2]}) ({as_gauge(asked[1])})"
    return found


def as_gauge(selector: str) -> str:
    """A selector whose values do not matter, only its labels."""
    return f"rate({selector}[5m])" if "_total" in selector else selector
