"""No record of ours is deeper than its own reader allows: the bounds on depth follow from the types of the records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import inspect

from reconsume.topics import json_bounds
from reconsume.topics.action_record import ActionRecord
from reconsume.topics.events import Event
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.instance_sums import InstanceSums, TopicDeadLetters, TopicFailures, TopicLag
from reconsume.topics.policy_record import (
    DEEPEST,
    InstanceHeard,
    PolicyRecord,
    SettlementRecord,
    SubscriptionRecord,
    instance_key,
    parse_record,
    render_record,
)
from reconsume.topics.view_record import ViewRow

INNER = {
    inspect.DictType: lambda kind: kind.value_type,
    inspect.ListType: lambda kind: kind.item_type,
    inspect.VarTupleType: lambda kind: kind.item_type,
}


def depth(kind: inspect.Type) -> int:
    """How many objects and lists a value of this type may have inside each other; open ones (`Any`) count as none."""
    match kind:
        case inspect.StructType():
            return 1 + max((depth(field.type) for field in kind.fields), default=0)
        case inspect.UnionType():
            return max(map(depth, kind.types))
        case inspect.TupleType():
            return 1 + max(map(depth, kind.item_types), default=0)
        case inspect.Metadata():
            return depth(kind.type)
    inner = INNER.get(type(kind))
    return 0 if inner is None else 1 + depth(inner(kind))


@pytest.mark.parametrize(
    ("record", "deepest"),
    [
        *(
            (record, DEEPEST)
            for record in (PolicyRecord, SubscriptionRecord, SettlementRecord, HoldRecord, ActionRecord)
        ),
        *((one, json_bounds.DEEPEST) for one in (Event, ViewRow)),
    ],
)
def test_no_record_may_be_deeper_than_its_reader_allows(record: Any, deepest: int) -> None:
    assert depth(inspect.type_info(record)) <= deepest


def test_a_heartbeat_with_everything_that_it_may_tell_is_heard() -> None:
    """Given failures of several topics with their reasons: they made every reader drop the heartbeat."""
    reasons = {"http-500": 3, "other": 1}
    sums = InstanceSums(
        at=1,
        failures=[TopicFailures("orders", 10, 4, reasons)],
        dead_letters=[TopicDeadLetters("orders", reasons)],
        lag=[TopicLag("orders", 0, 7_000, 3, grows=True)],
    )
    told = msgspec.structs.replace(SubscriptionRecord({"orders": "*"}, 1), sums=sums)
    heard = parse_record(instance_key("billing-0"), render_record(told))
    assert isinstance(heard, InstanceHeard), heard
    assert heard.record == told
