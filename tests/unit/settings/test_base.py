"""A file may extend one other: what lies over what, where each value says that it came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.settings.load import effective, load, load_with_origins
from reconsume.sidecar.settings.reference import json_schema
from tests.support.sidecar.settings import problems

COMMON = """\
topics: [a, b]
kafka:
  bootstrap.servers: kafka:9092
  client.rack: west
deliver: {timeout: 20s, concurrency: 8, dead_letter_statuses: [400, 422]}
retry:
  ladder: {initial: 5s, max: 1h}
ui: true
"""
BILLING = """\
base: common.yaml
group: billing
topics: [orders]
kafka:
  client.rack: east
deliver:
  url: http://127.0.0.1:8080/events
  dead_letter_statuses: [409]
retry:
  ladder: {initial: 1s}
log:
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "common.yaml").write_text(COMMON, "utf-8")
    path = tmp_path / "billing.yaml"
    path.write_text(BILLING, "utf-8")
    return path


def test_sections_are_merged_by_key_and_lists_and_values_are_replaced(file: Path) -> None:
    settings = load(file, (), {})
    assert settings.topic_names == ("orders",)
    assert dict(settings.kafka) == {"bootstrap.servers": "kafka:9092", "client.rack": "east"}
    assert (settings.deliver.timeout, settings.deliver.concurrency) == (20_000, 8)
    assert settings.deliver.dead_letter_statuses == (409,)
    assert settings.ladder.delays[0] == 1_000
    assert settings.ladder.delays[-1] == 7_200_000, "a formula is one value, so the max of the base is gone"
    assert settings.ui.enabled


def test_variables_and_sets_lie_over_both(file: Path) -> None:
    settings = load(file, ["deliver.concurrency=3"], {"RECONSUME_DELIVER__TIMEOUT": "9s"})
    assert (settings.deliver.concurrency, settings.deliver.timeout) == (3, 9_000)


def test_each_value_says_from_which_file_it_is(file: Path) -> None:
    origins = {row.key: row.origin for row in effective(load_with_origins(file, (), {}))}
    common = file.with_name("common.yaml")
    assert origins["deliver.timeout"] == f"{common}, line 5"
    assert origins["kafka.bootstrap.servers"] == f"{common}, line 3"
    assert origins["kafka.client.rack"] == f"{file}, line 5"
    assert origins["deliver.dead_letter_statuses"] == f"{file}, line 8"
    assert origins["topics"] == f"{file}, line 3"
    assert origins["log.level"] == "default"


def test_a_fault_in_a_base_names_the_file_and_line_of_the_base(file: Path) -> None:
    file.with_name("common.yaml").write_text(COMMON + "start: newest\n", "utf-8")
    (problem,) = problems(file)
    assert problem == f"start = newest: must be earliest or latest ({file.with_name('common.yaml')}, line 9)"


def test_a_base_that_is_missing_is_the_only_fault(file: Path) -> None:
    file.with_name("common.yaml").unlink()
    (problem,) = problems(file)
    assert problem == f"base = common.yaml ({file}, line 1): {file.with_name('common.yaml')}: there is no such file"


@pytest.mark.parametrize("base", ["/etc/common.yaml", "https://example.com/common.yaml", "[common.yaml]", "''", "7"])
def test_a_base_is_one_file_relative_to_its_own(file: Path, base: str) -> None:
    text = BILLING.replace("base: common.yaml", f"base: {base}")
    file.write_text(text, "utf-8")
    assert f"base: must be the path of a file, relative to this one ({file}, line 1)" in problems(file)
    assert not schema_takes(yaml.safe_load(text))


def test_there_is_one_level_of_bases(file: Path) -> None:
    common = file.with_name("common.yaml")
    common.write_text(f"base: other.yaml\n{COMMON}", "utf-8")
    assert problems(file) == [f"base: a base has no base of its own ({common}, line 1)"]


def test_neither_a_variable_nor_a_set_names_a_base(file: Path) -> None:
    told = problems(file, ["base=x.yaml"], {"RECONSUME_BASE": "y.yaml"})
    assert [text.partition(";")[0] for text in told] == ["base: only a file names its base"] * 2


def schema_takes(tree: object) -> bool:
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator(json_schema()).is_valid(tree))


def test_the_schema_requires_of_a_file_with_a_base_only_what_is_in_it_to_be_right() -> None:
    tree = yaml.safe_load(BILLING)
    assert schema_takes(tree)
    assert schema_takes({"base": "common.yaml", "group": "billing"})
    assert not schema_takes(tree | {"start": "newest"})
    del tree["base"]
    assert not schema_takes(tree), "without a base kafka must name the brokers"
    assert not schema_takes({name: value for name, value in tree.items() if name != "kafka"})
