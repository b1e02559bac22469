"""The JSON Schema and the reference page: current, and telling the same as the check does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconsume.sidecar.settings.load import validate
from reconsume.sidecar.settings.model import LEAVES
from reconsume.sidecar.settings.reference import json_schema, markdown_page, reference
from tests.support.sidecar.settings import GOOD

DOCS = Path(__file__).parents[3] / "docs"
FULL = """\
group: billing
topics: [orders, {name: invoices, tags: "TagA||TagB"}]
kafka:
  bootstrap.servers: localhost:9092
start: earliest
deliver:
  mode: push
  url: http://127.0.0.1:8080/events
  health_url: null
  concurrency: auto
  timeout: 30s
  order: none
  broadcast: false
  batch: {max_size: 1, max_wait: 0s}
  forward_headers: []
  envelope: false
  dead_letter_statuses: []
  allow_remote: false
retry:
  max_reconsume_times: 16
  ladder: rocketmq
  levels: null
  ordered_interval: 1s
  ordered_max_times: null
  nack_redelivery_delay: 1m
topic_prefix: "{group}"
api: {listen: "127.0.0.1:8471", token_file: null}
view: {enabled: false}
policy_mode: agreed
drain_timeout: null
lock_timeout: null
log: {level: info, format: json}
"""


def draft() -> Any:
    """The class that checks; loaded when it is needed, because it takes a second that every worker would spend."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def schema_takes(tree: Any) -> bool:
    return bool(draft()(json_schema()).is_valid(tree))


def test_the_committed_schema_is_current() -> None:
    assert json.loads((DOCS / "config.schema.json").read_text(encoding="utf-8")) == json_schema()


def test_the_committed_reference_page_is_current() -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == markdown_page()


def test_the_schema_is_a_schema() -> None:
    draft().check_schema(json_schema())


@pytest.mark.parametrize("text", [GOOD, FULL], ids=["smallest", "full"])
def test_schema_and_check_both_take_a_good_file(text: str) -> None:
    tree = yaml.safe_load(text)
    assert schema_takes(tree)
    assert validate(tree)[1] == []


def test_the_full_file_of_the_interface_sets_only_defaults() -> None:
    full, _ = validate(yaml.safe_load(FULL))
    smallest, _ = validate(yaml.safe_load(GOOD))
    assert full is not None
    assert smallest is not None
    assert replace(full, topics=smallest.topics) == smallest


@pytest.mark.parametrize(
    "change",
    [
        {"bogus": 1},
        {"group": "a b"},
        {"deliver": {"mode": "psuh"}},
        {"deliver": {"timeout": 15}},
        {"deliver": {"timeout": ""}},
        {"deliver": {"concurrency": 0}},
        {"retry": {"ladder": "rabbit"}},
        {"retry": {"ladder": {"inital": "5s"}}},
        {"kafka": {"bootstrap.servers": "b", "acks": "1"}},
        {"kafka": {"bootstrap.servers": "b", "group.id": "x"}},
        {"kafka": {}},
        {"topics": [{"nme": "x"}]},
    ],
)
def test_schema_and_check_both_refuse_a_bad_file(change: dict[str, Any]) -> None:
    tree = yaml.safe_load(GOOD) | change
    assert not schema_takes(tree)
    assert validate(tree)[1] != []


@pytest.mark.parametrize("value", [False, "false"])
def test_the_schema_takes_a_property_that_repeats_our_own_value(value: object) -> None:
    assert schema_takes(yaml.safe_load(GOOD) | {"kafka": {"bootstrap.servers": "b", "enable.auto.commit": value}})


def test_every_setting_is_described_in_a_sentence() -> None:
    for path, row in LEAVES.items():
        assert row.meaning.endswith("."), path


def test_the_reference_gives_every_default_as_it_is_written() -> None:
    defaults = {row["key"]: row["default"] for row in reference()}
    assert defaults["group"] == "required"
    assert defaults["deliver.timeout"] == "30s"
    assert defaults["deliver.buffer_memory"] == "16MiB"
    assert defaults["deliver.url"] == "null"
    assert defaults["deliver.forward_headers"] == "[]"
    assert defaults["retry.levels"] == "null"
