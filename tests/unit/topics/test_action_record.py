"""Records of actions on the policy topic: what is read is what was written, and anything else is a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.topics.action_record import ACTION, ActionHeard, ActionRecord, action_key, render_action
from reconsume.topics.policy_record import BadRecord, parse_record
from tests.support.rings import EXAMPLES

GOOD = ActionRecord("redrive", "ann@laptop", 1_763_690_000_000, "reason bad-sku", "", 1_763_690_001_000, 3, "")


def test_what_was_written_is_read() -> None:
    assert parse_record(action_key("00ff"), render_action(GOOD)) == ActionHeard("00ff", GOOD)
    assert parse_record(action_key("00ff"), None) == ActionHeard("00ff", None)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    value = b'{"action":"rewind","who":"ann","at":1,"v":1,"more":{"x":[1]}}'
    assert parse_record(action_key("a"), value) == ActionHeard("a", ActionRecord("rewind", "ann", 1))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (ACTION, render_action(GOOD)),
        (ACTION + b"a b", render_action(GOOD)),
        (ACTION + b"\xff", render_action(GOOD)),
        (ACTION + b"a" * 65, None),
        (b"action/a", b""),
        (b"action/a", b"[]"),
        (b"action/a", b'{"who":"ann","at":1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"","at":1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"ann","at":-1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"ann","at":1,"v":2}'),
        (b"action/a", b'{"action":"redrive","who":"ann","at":1,"v":1,"records":-1}'),
        (b"action/a", b'{"action":"redrive","who":"a\\nb","at":1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"ann","why":"\\u202e","at":1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"' + b"x" * 257 + b'","at":1,"v":1}'),
        (b"action/a", b'{"action":"redrive","who":"ann","what":"' + b"x" * 501 + b'","at":1,"v":1}'),
    ],
    ids=str,
)
def test_what_is_no_action_is_a_sentence(key: bytes, value: bytes | None) -> None:
    read = parse_record(key, value)
    assert isinstance(read, BadRecord)
    assert read.text.isprintable()


@given(st.binary(max_size=40), st.binary(max_size=200) | st.none())
@settings(max_examples=EXAMPLES)
def test_whatever_a_writer_writes_nothing_is_raised(ident: bytes, value: bytes | None) -> None:
    read = parse_record(ACTION + ident, value)
    assert isinstance(read, ActionHeard | BadRecord)
