"""What a look says of decisions about parked records: carried out, still open, or no longer ours."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.waiting_keys import WaitingRecord
from reconsume.sidecar.dlq.settle import Ended, ended_of
from reconsume.topics.policy_record import SettlementRecord
from reconsume.topics.retry_order import Order

ID = "orders:0:1"
OURS = SettlementRecord(0, 3, "retry-now", "seen", "ann", 1, "ours")
THEIRS = replace(OURS, who="bob", nonce="theirs")
PARKED = WaitingRecord(
    id=ID,
    order=Order(1),
    cycle=0,
    redrives=0,
    times=3,
    due=0,
    at=1,
    reason="http-503",
    behind=False,
    offset=1,
    parked=True,
    settled="",
)
TRIED = replace(PARKED, settled="ours")
TRIED_BY_THEM = replace(PARKED, settled="theirs")
OPEN: dict[str, Ended] = {}
DONE, OTHERS = {ID: Ended.DONE}, {ID: Ended.OTHERS}


@pytest.mark.parametrize(
    ("waits", "present", "look"),
    [
        (PARKED, OURS, OPEN),
        (None, OURS, DONE),
        (TRIED, OURS, DONE),
        (None, None, DONE),
        (PARKED, None, OTHERS),
        (PARKED, THEIRS, OTHERS),
        (TRIED, THEIRS, OTHERS),
        (TRIED_BY_THEM, THEIRS, OTHERS),
        (None, THEIRS, OTHERS),
    ],
)
def test_only_a_decision_that_still_stands_is_called_done(
    waits: WaitingRecord | None, present: SettlementRecord | None, look: dict[str, Ended]
) -> None:
    """And so only such a one is taken out of the topic: one that somebody made later is never lost by it."""
    states: Mapping[str, WaitingRecord] = {} if waits is None else {ID: waits}
    assert ended_of({ID: OURS}, states, {} if present is None else {ID: present}) == look
