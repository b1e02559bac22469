"""A hold is a banner on every page; whoever is signed in can release it there, and begin one on the page of holds."""

from __future__ import annotations

import json
import re

import pytest

from reconsume.topics.hold_record import HOLD, HoldRecord, hold_key, parse_hold, render_hold
from tests.support.kafka.topic_io import Out, dump, produce
from tests.ui.hostile import ATTACKS
from tests.ui.scene import Scene, wall
from tests.ui.web import Visitor

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
    assert [line["what"] for line in lines if line["action"] == "release"] == ["ui-1 topic=orders"]


@pytest.fixture
def fields(signed_in: Visitor) -> dict[str, str]:
    """The fields of the form as the page has them, filled in."""
    page = signed_in.get("/holds").body.decode()
    (form,) = re.findall(r'<form class="search card" method="post" action="/holds/begin".*?</form>', page, re.DOTALL)
    names = set(re.findall(r'<input (?:type="\w+" )?name="(\w+)"', form))
    assert names == {"csrf", "topic", "level", "key", "base64", "for", "why", "all"}
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    return {**hidden, "topic": "", "level": "", "key": "", "base64": "", "for": "20m", "why": "paid <by> hand"}


def test_a_hold_is_in_the_head_of_the_next_page_at_once_and_its_release_too(
    scene: Scene, signed_in: Visitor, fields: dict[str, str]
) -> None:
    """A page begins with the alarms that were last asked for, which may be a minute old."""
    assert "Held:" not in banner(signed_in)
    assert signed_in.post("/holds/begin", fields | {"topic": scene.group.main}).status == 303
    assert "Held:" in signed_in.get("/activity").body.decode()
    ident = re.search(r'name="hold" value="([^"]+)"', banner(signed_in))
    assert ident is not None
    assert signed_in.post("/holds/release", {"csrf": fields["csrf"], "hold": ident[1]}).status == 303
    assert "Held:" not in signed_in.get("/activity").body.decode()


def written(scene: Scene) -> list[HoldRecord]:
    """The holds on the policy topic, in their order."""
    rows = [row for row in dump(scene.group.bootstrap, scene.group.names.policy) if (row.key or b"").startswith(HOLD)]
    records = [parse_hold(row.value) for row in rows if row.value is not None]
    return [record for record in records if isinstance(record, HoldRecord)]


@pytest.mark.parametrize(
    ("named", "selection"),
    [
        ({"topic": " MAIN "}, (("MAIN", None, None, False), "topic=MAIN")),
        ({"level": "600s"}, ((None, "10m", None, False), "level=10m")),
        ({"level": "main", "key": " a b "}, ((None, "main", b" a b ", False), "level=main key= a b ")),
        ({"base64": "/wA="}, ((None, None, b"\xff\0", False), "key=\\xff\\x00")),
        ({"all": "yes"}, ((None, None, None, True), "all")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_hold_is_begun_by_the_form_with_an_end_and_a_reason(
    scene: Scene,
    signed_in: Visitor,
    fields: dict[str, str],
    named: dict[str, str],
    selection: tuple[tuple[object, ...], str],
) -> None:
    main = scene.group.main
    filled = {name: text.replace("MAIN", main) for name, text in named.items()}
    (topic, *rest), what = selection[0], selection[1].replace("MAIN", main)
    answer = signed_in.post("/holds/begin", {**fields, **filled})
    assert (answer.status, answer.headers["location"]) == (303, "/holds")
    *_, record = written(scene)
    assert record.topic == (topic and main)
    assert [record.level, record.key, record.all] == rest
    assert (record.until - record.since, record.why, record.who) == (1_200_000, "paid <by> hand", "alice@ui")
    page = signed_in.get("/holds").body.decode()
    (ident,) = re.findall(r"Release ([0-9a-f]{8})</button></form></td>", page)
    assert "paid &lt;by&gt; hand" in page
    assert f"{what}</td>" in page
    planned, ended = [
        line for line in map(json.loads, scene.audit.read_text().splitlines()) if line["action"].startswith("hold")
    ][-2:]
    assert (planned["what"], planned["lasts"], planned["why"]) == (what, "20m", "paid <by> hand")
    assert (ended["action"], ended["what"], ended["error"]) == ("hold-result", f"{ident} {what}", "")
    assert signed_in.post("/holds/release", {"csrf": fields["csrf"], "hold": ident}).status == 303


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"csrf": "x" * 43}, 403),
        ({"topic": ""}, 400),
        ({"all": "yes"}, 400),
        ({"level": "orders"}, 400),
        ({"base64": "no base64!"}, 400),
        ({"key": "a", "base64": "YQ=="}, 400),
        ({"key": "k" * 4_097}, 400),
        ({"topic": "t" * 250}, 400),
        ({"topic": "a\x1b[31mb"}, 400),
        ({"for": ""}, 400),
        ({"for": "7"}, 400),
        ({"for": "999ms"}, 400),
        ({"for": "7d1ms"}, 400),
        ({"for": "9999999999d"}, 400),
        ({"why": " "}, 400),
        ({"why": "x" * 1_001}, 400),
        ({"why": "a\nb"}, 400),
        ({"why": "x" * 1_000_000}, 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_hold_is_refused_and_nothing_is_written(
    scene: Scene, signed_in: Visitor, fields: dict[str, str], changed: dict[str, str], status: int
) -> None:
    before = written(scene)
    answer = signed_in.post("/holds/begin", {**fields, "topic": "orders", **changed})
    assert (answer.status, b"Nothing was done" in answer.body) == (status, True)
    assert written(scene) == before


def test_nobody_else_has_the_form(scene: Scene, read_only: Scene, fields: dict[str, str]) -> None:
    visitor = Visitor(scene)
    page = visitor.get("/holds").body.decode()
    assert ("/holds/begin" in page, "Sign in</a> to hold or release" in page) == (False, True)
    assert visitor.post("/holds/begin", {**fields, "all": "yes"}).status == 403
    reader = Visitor(read_only)
    page = reader.get("/holds").body.decode()
    assert ("/holds/begin" in page, "Sign in</a>" in page) == (False, False)
    assert reader.post("/holds/begin", {**fields, "all": "yes"}).status == 404


def test_what_anybody_may_write_hurts_no_page_and_many_are_a_number(scene: Scene) -> None:
    records = [
        HoldRecord(wall(), wall() + HOUR, attack, attack, topic=attack[:200] or "x", key=attack.encode())
        for attack in (ATTACKS * 20)[:20]
        if attack.isprintable()
    ]
    for number, record in enumerate(records):
        hold(scene, f"evil-{number}", record)
    try:
        page = Visitor(scene).get("/holds").body.decode()
        assert page.count('data-label="Held"') == len(records)
        assert page.count("<script") == page.count('<script src="/static/')
        assert "<img" not in page
        shown = banner(Visitor(scene))
        assert shown.count("<strong>Held:</strong>") == 6
        assert f"{len(records) - 5} more" in shown
        assert "<script" not in shown
        assert "<img" not in shown
    finally:
        for number in range(len(records)):
            produce(scene.group.bootstrap, scene.group.names.policy, [Out(None, hold_key(f"evil-{number}"))])
