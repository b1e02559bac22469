"""What a configuration says twice is refused, and both places are named: nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.model import LEAVES
from reconsume.sidecar.settings.table import Row
from tests.support.sidecar.settings import good, problems, write_good

TWICE = {
    "topics=[orders, bills, orders]": "topics[2] = orders: orders is in [0] of this list already",
    "topics=[{name: orders, tags: A}, {name: orders, tags: B}]": "already; a topic has one entry, whose tags",
    "topics=[{name: orders, tags: A||B||A}]": "topics[0].tags = A||B||A: has A twice",
    "deliver.forward_headers=[X-Tenant, x_tenant]": "deliver.forward_headers[1] = x_tenant: x-tenant is in [0]",
    "deliver.outputs=[bills, bills]": "deliver.outputs[1] = bills",
    "deliver.dead_letter_statuses=[400, 422, 400]": "deliver.dead_letter_statuses[2] = 400: 400 is in [0]",
    "deliver.throttle_statuses=[429, 429]": "deliver.throttle_statuses[1] = 429",
    "retry.rules=[{name: a, topics: [t, t]}]": "retry.rules[0].topics[1] = t",
    "retry.rules=[{name: a, reasons: [timeout, timeout]}]": "retry.rules[0].reasons[1] = timeout",
    "retry.rules=[{name: a}, {name: b}, {name: a}]": "retry.rules[2] = {…}: a is in [0] of this list already",
    "retry.levels=[1m, 60s]": "the list of levels must rise",
    "retry.understand=[pulsar, pulsar]": "retry.understand[1] = pulsar",
    "api.hosts=[billing, Billing]": "api.hosts[1] = Billing: billing is in [0]",
    "ui.hosts=[billing, billing]": "ui.hosts[1] = billing",
    "ui.groups=[billing, billing]": "ui.groups[1] = billing",
    "kafka.bootstrap.servers=b:1, c:1,b:1": "kafka.bootstrap.servers = b:1, c:1,b:1: has b:1 twice",
}


@pytest.mark.parametrize("given", TWICE)
def test_an_entry_that_is_there_twice_is_refused_with_both_positions(tmp_path: Path, given: str) -> None:
    (problem,) = problems(write_good(tmp_path), [given])
    assert TWICE[given] in problem


def is_a_list(row: Row) -> bool:
    return row.kind.schema.get("type") == "array"


def test_every_list_of_the_configuration_is_among_these() -> None:
    lists = {".".join(path) for path, row in LEAVES.items() if is_a_list(row)}
    assert lists <= {given.partition("=")[0] for given in TWICE}


def test_a_delay_of_a_ladder_may_be_repeated(tmp_path: Path) -> None:
    assert good(tmp_path, "retry.ladder=[10s, 10s, 1m]").ladder.delays == (10_000, 10_000, 60_000)


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ("sasl.mechanism", "sasl.mechanisms", "PLAIN"),
        ("delivery.timeout.ms", "message.timeout.ms", "60000"),
        ("queue.buffering.max.ms", "linger.ms", "5"),
    ],
)
def test_a_property_under_both_of_its_names_is_refused(tmp_path: Path, one: str, other: str, value: str) -> None:
    (problem,) = problems(write_good(tmp_path), [f"kafka.{one}={value}", f"kafka.{other}={value}"])
    assert problem.startswith(f"kafka.{one} = ")
    assert f"is given twice: it is another name of {other}" in problem


def test_two_variables_for_one_setting_are_refused(tmp_path: Path) -> None:
    environ = {"RECONSUME_START": "latest", "RECONSUME_Start": "earliest"}
    (problem,) = problems(write_good(tmp_path), (), environ)
    assert problem == "start: is given by two variables, RECONSUME_START and RECONSUME_Start; leave one out"


def test_sources_of_settings_are_layers_and_no_repetitions(tmp_path: Path) -> None:
    settings = good(tmp_path, "start=earliest", "start=latest", RECONSUME_START="earliest")
    assert settings.start == "latest"
