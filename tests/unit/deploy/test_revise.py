"""A document changed in place: what it says is exactly what was wanted, and what did not change keeps every byte."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.deploy.yaml_edit import CannotReviseError, revise

NAMES = st.sampled_from(["a", "b", "c", "web", "db"])
SCALARS = st.one_of(
    st.text(max_size=8).filter(str.isprintable), st.integers(), st.booleans(), st.sampled_from(["yes", "1", "- x", "#"])
)
THINGS = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, NAMES, SCALARS),
    max_size=4,
    unique_by=lambda t: t["name"],
)
DOCUMENTS = st.dictionaries(NAMES, st.one_of(SCALARS, THINGS, st.dictionaries(NAMES, SCALARS, max_size=3)), max_size=5)


def written(value: Any, flow: bool | None, offset: bool) -> str:
    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, indentless and not offset)

    return yaml.dump(value, Dumper=Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True)


@given(old=DOCUMENTS, new=DOCUMENTS, flow=st.sampled_from([None, True, False]), offset=st.booleans())
def test_it_says_what_was_wanted_whatever_was_there(old: Any, new: Any, flow: bool | None, offset: bool) -> None:
    old = {"kind": "X", **old}
    text = written(old, flow, offset)
    assert yaml.safe_load(revise(text, old, {"kind": "X", **new})) == {"kind": "X", **new}


@given(old=DOCUMENTS, added=THINGS, offset=st.booleans())
def test_what_was_added_and_taken_out_again_leaves_no_trace(old: Any, added: Any, offset: bool) -> None:
    old = {"kind": "X", "items": [{"name": "first"}], **old}
    new = copy.deepcopy(old)
    new["items"] += [{**one, "name": f"new-{one['name']}"} for one in added]
    new["more"] = {"of": "it"}
    text = written(old, False, offset)
    assert revise(revise(text, old, new), new, old) == text


COMMENTED = """\
# The service
spec: # of it
  # before the containers
  containers:
  - name: web   # the only one
    image: "web:1"
    args: [ "a",  'b' ]  # two
    # resources: later

  # before the volumes
  volumes:
  - name: cache
    emptyDir: {}
  # give it time
  grace: 60
# the end
"""


def test_comments_quotes_and_spaces_stay_where_they_are() -> None:
    old = yaml.safe_load(COMMENTED)
    new = copy.deepcopy(old)
    new["spec"]["volumes"].append({"name": "config", "configMap": {"name": "x"}})
    new["spec"]["initContainers"] = [{"name": "sidecar"}]
    assert revise(COMMENTED, old, new) == COMMENTED.replace(
        "    emptyDir: {}\n", "    emptyDir: {}\n  - name: config\n    configMap:\n      name: x\n"
    ).replace("  grace: 60\n", "  grace: 60\n  initContainers:\n  - name: sidecar\n")


def test_a_comment_inside_an_item_stays_with_it() -> None:
    old = yaml.safe_load(COMMENTED)
    new = copy.deepcopy(old)
    new["spec"]["containers"].append({"name": "sidecar"})
    assert "    # resources: later\n  - name: sidecar\n\n  # before the volumes\n" in revise(COMMENTED, old, new)


def test_json_stays_json() -> None:
    import json

    text = json.dumps({"spec": {"containers": [{"name": "web"}]}}, indent=2)
    new = {"spec": {"containers": [{"name": "web"}], "volumes": [{"name": "x"}]}}
    assert json.loads(revise(text, json.loads(text), new)) == new


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("base: &x\n  b: 1\nc:\n  <<: *x\n", {"base": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_what_is_shared_with_another_place_is_not_changed(text: str, old: Any) -> None:
    """Given an alias or a merge where something must change, then it is refused: the other place would change too."""
    with pytest.raises(CannotReviseError):
        revise(text, old, {**old, "c": {"b": 2}})


def test_what_is_shared_and_does_not_change_is_no_obstacle() -> None:
    text = "a: &x {b: 1}\nc: *x\nd: 1\n"
    old = yaml.safe_load(text)
    assert revise(text, old, {**old, "d": 2}) == "a: &x {b: 1}\nc: *x\nd: 2\n"


def test_lines_end_as_they_did() -> None:
    text = "a: 1\r\nb:\r\n  - name: x\r\n"
    old = yaml.safe_load(text)
    changed = revise(text, old, {**old, "b": [{"name": "x"}, {"name": "y"}]})
    assert changed == "a: 1\r\nb:\r\n  - name: x\r\n  - name: y\r\n"


def test_a_last_line_without_an_end_gets_one() -> None:
    assert revise("a: 1", {"a": 1}, {"a": 1, "b": 2}) == "a: 1\nb: 2\n"


def test_a_block_of_text_before_it_keeps_its_end() -> None:
    text = "a: |\n  one\n  # no comment\nb: 1\n"
    old = yaml.safe_load(text)
    assert revise(text, old, {**old, "c": 2}) == text + "c: 2\n"
    text = "b: 1\na: |\n  one\n  # no comment\n"
    assert revise(text, yaml.safe_load(text), {**yaml.safe_load(text), "c": 2}) == text + "c: 2\n"
