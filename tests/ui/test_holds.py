"""A hold is a banner on every page, and whoever is signed in can release it there."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.kafka.topic_io import Out, dump, produce
from tests.ui.hostile import ATTACKS
from tests.ui.scene import Scene, wall
from tests.ui.web import Visitor
from topics.hold_record import HoldRecord, hold_key, render_hold

HOUR = 3_600_000


@pytest.fixture
def signed_in(scene: Scene) -> Visitor:
    visitor = Visitor(scene)
    assert visitor.sign_in().status == 303
    return visitor


def hold(scene: Scene, ident: str, record: HoldRecord) -> None:
    produce(scene.group.bootstrap, scene.group.names.policy, [Out(render_hold(record), hold_key(ident))])


def banner(visitor: Visitor) -> str:
    return visitor.get("/part/alarms").body.decode()


def test_a_hold_is_shown_to_all_and_released_by_whoever_is_signed_in(scene: Scene, signed_in: Visitor) -> None:
    hold(scene, "ui-1", HoldRecord(wall() - HOUR, wall() + HOUR, "the ledger is mended", "ann", topic="orders"))
    for visitor in (Visitor(scene), signed_in):
        shown = banner(visitor)
        assert "<strong>Held:</strong> topic=orders, by ann." in shown
        assert "the ledger is mended" in shown
        assert ("Release ui-1" in shown) is (visitor is signed_in)
    forged = signed_in.post("/holds/release", {"hold": "ui-1", "csrf": "x" * 43})
    assert forged.status == 403
    csrf = re.search(r'name="csrf" value="([^"]+)"', banner(signed_in))
    assert csrf is not None
    fields = {"hold": "ui-1", "csrf": csrf[1]}
    assert signed_in.post("/holds/release", fields).status == 303
    assert "Held:" not in banner(signed_in)
    assert signed_in.post("/holds/release", fields).status == 409
    (last,) = [row for row in dump(scene.group.bootstrap, scene.group.names.policy) if row.key == b"hold/ui-1"][-1:]
    assert json.loads(last.value or b"")["released_by"] == "alice@ui"
    lines = [json.loads(line) for line in scene.audit.read_text().splitlines()]
    assert [line["hold"] for line in lines if line["action"] == "release"] == ["ui-1", "ui-1"]


def test_what_anybody_may_write_hurts_no_page_and_many_are_a_number(scene: Scene) -> None:
    records = [
        HoldRecord(wall(), wall() + HOUR, attack, attack, topic=attack[:200] or "x", key=attack.encode())
        for attack in (ATTACKS * 20)[:20]
        if attack.isprintable()
    ]
    for number, record in enumerate(records):
        hold(scene, f"evil-{number}", record)
    try:
        shown = banner(Visitor(scene))
        assert shown.count("<strong>Held:</strong>") == 6
        assert f"{len(records) - 5} more" in shown
        assert "<script" not in shown
        assert "<img" not in shown
    finally:
        for number in range(len(records)):
            produce(scene.group.bootstrap, scene.group.names.policy, [Out(None, hold_key(f"evil-{number}"))])
