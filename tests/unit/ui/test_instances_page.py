"""The page of the instances: one that runs, one that is silent, and one whose service is not there."""

from __future__ import annotations

import pytest

from reconsume.sidecar.ui.progress import Lags
from reconsume.sidecar.ui.queries import Instance
from reconsume.sidecar.ui.templating import environment
from reconsume.topics.policy_record import PaceTold, SubscriptionRecord

NOW = 1_763_690_000_000
OPEN = PaceTold("open", NOW - 60_000, 3, 64)
WAITS = PaceTold("waiting", NOW - 17_000, reason="no connection to http://127.0.0.1:8081/ (connection-refused)")


def page(pace: PaceTold, *, alive: bool = True) -> str:
    instance = Instance("billing-0", SubscriptionRecord({"orders": "*"}, NOW - 1_000, pace), alive, "", frozenset(), ())
    template = environment().get_template("instances_part.html")
    return template.render(instances=[instance], lags=Lags((), (), {}), now=NOW)


@pytest.mark.parametrize(
    ("pace", "alive", "says", "never"),
    [
        (OPEN, True, ["running", "open", "3 of 64 out"], ["waiting"]),
        (OPEN, False, ["silent"], ["running", "open"]),
        (WAITS, True, ["waiting for its service", f"{WAITS.reason}, for 17s"], ["running", "out"]),
        (WAITS, False, ["silent"], ["waiting for"]),
    ],
)
def test_it_says_what_an_instance_does(pace: PaceTold, alive: bool, says: list[str], never: list[str]) -> None:
    [row] = [part for part in page(pace, alive=alive).split("<tr>") if "billing-0" in part]
    cells = row.partition("<td")[2]
    assert [word for word in says if word not in cells] == []
    assert [word for word in never if f">{word}" in cells or f" {word}" in cells] == []
