"""What a reader of the dashboard sees who has not signed in, where values need it: each field of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from urllib.parse import urlencode

import pytest

from reconsume.topics.decision_record import DecisionRecord, decision_key, render_decision
from reconsume.topics.events import State, encode_event
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import PolicyRecord, render_record
from reconsume.topics.reset_record import ResetRequest, ResetTarget, render_reset, reset_key
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, create_group, fresh_group
from tests.support.kafka.queue_copies import queue_copy
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.kafka.view_topics import event
from tests.support.sidecar.redrive import dead_letter
from tests.support.view_rows import out, view_row
from tests.ui.scene import Scene, dashboard, wall
from tests.ui.web import Visitor

MARK = "canary"
"""Every key, value, header, text and reason of an operator here has it, and nothing else."""
KEY, VALUE, HEADER = f"key-{MARK}".encode(), f"value-{MARK}".encode(), f"header-{MARK}".encode()
DECISION, RESET = "d-1", "r-1"
TEXT, WHY = f"text-{MARK}", f"why-{MARK}"

OPEN = {
    *("Id", "State", "Retries", "Level", "Due", "Reason", "Topic", "Failed", "Written", "Where", "Why it waits"),
    *(
        "Dead letter",
        "Dead letters",
        "Newest",
        "Died",
        "Place",
        "Retries, redrives",
        "Redrives",
        "First failed",
        "Last failed",
    ),
    *("Where it came from", "By instance", "At", "Instance", "Held", "By", "Since", "Ends", "From", "Group", "Lag"),
    *("Pace", "Partitions", "Partition", "Overdue", "Heartbeat", "Subscribes to", "Reads now", "Host", "Version"),
    *(
        "Decision",
        "How",
        "Settled",
        "Finished partitions",
        "Reset",
        "To",
        "Target",
        "Again, at most",
        "Skipped, at most",
    ),
    *(
        "Behind",
        "First record",
        "Oldest",
        "Who",
        "Token",
        "What",
        "Record",
        "Its time",
        "Waiting",
        "Waits",
        "Next",
        "Last",
        "",
    ),
}
"""Fields that every reader sees, of keys and settings too: those of the policy page are settings."""
GATED = {"Key", "Value", "Why", "More"}
"""Fields that need a sign-in. Texts stand next to the class of a reason, and a hold's key in what is held."""
POLICY = {"Key", "Value", "From"}
"""Fields of the policy page, which has settings and nothing of records."""


@pytest.fixture(scope="module")
def scene(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """An ordered group with a dead letter, a waiting key, an undelivered record, a hold and a policy."""
    group = create_group(replace(fresh_group(kafka.bootstrap, delays=()), queued=True), partitions=1, also=UNUSED)
    names, now, record = group.names, wall(), f"{group.main}:0:7"
    row = view_row(
        7, State.DLQ, group=group.group, id=record, topic=group.main, reason="http-500", text=TEXT, at=now - 5_000,
        last_failed_at=now - 5_000,
    )  # fmt: skip
    produce(group.bootstrap, names.view, [out(row)])
    told = event(
        group.group, 7, State.DLQ, 3, id=record, topic=group.main, reason="http-500", text=TEXT, at=now - 5_000
    )
    produce(group.bootstrap, names.events, [Out(encode_event(told), record.encode())])
    own = ((f"x-{MARK}", HEADER),)
    letter = dead_letter(group, 7, VALUE, key=KEY, own=own, reason=f"http-500: {TEXT}", at=now - 5_000)
    produce(group.bootstrap, group.dlq, [letter])
    produce(group.bootstrap, group.main, [Out(VALUE, KEY, own, 0)])
    queue = group.queues[0]
    produce(group.bootstrap, queue, [queue_copy(queue, KEY, at, at == 0, topic=group.main) for at in range(2)])
    hold = HoldRecord(now, now + 3_600_000, WHY, "ann", topic=group.main, key=KEY)
    policy = PolicyRecord({"timeout": "30s"}, "bob", now, {}, why=WHY)
    decision = DecisionRecord("commit", "ann", WHY, now, (), key=KEY)
    reset = ResetRequest(group.main, "0badcafe", (ResetTarget(0, 0),), "ann", WHY, now, "earliest")
    held = [
        Out(render_hold(hold), hold_key("h1"), partition=0),
        Out(render_record(policy), b"policy", partition=0),
        Out(render_decision(decision), decision_key(DECISION), partition=0),
        Out(render_reset(reset), reset_key(RESET), partition=0),
    ]
    produce(group.bootstrap, names.policy, held)
    with dashboard(group, tmp_path_factory.mktemp("hidden"), read="signed-in") as served:
        until(lambda: record in Visitor(served).get("/records?state=all").body.decode(), SECONDS, "the view is read")
        yield served


def pages(scene: Scene) -> dict[str, str]:
    """Every page that shows something of the group, and how it is asked for."""
    record = f"{scene.group.main}:0:7"
    ident = urlencode({"id": record})
    return {
        "/": "/",
        "/part/group": "/part/group",
        "/part/alarms": "/part/alarms?fleet=1",
        "/part/instances": "/part/instances",
        "/records": "/records?state=all",
        "/record": f"/record?{ident}",
        "/record/journey": f"/record/journey?{ident}",
        "/find": f"/find?{urlencode({'text': f'{scene.group.main}:0:0'})}",
        "/dlq": "/dlq",
        "/dlq/letter": f"/dlq/letter?{urlencode({'place': record})}",
        "/keys": "/keys",
        "/keys/queue": f"/keys/queue?{urlencode({'key': KEY.decode()})}",
        "/holds": "/holds",
        "/policy": "/policy",
        "/instances": "/instances",
        "/activity": "/activity",
        "/records/settle": "/records/settle",
        f"/records/settle/{DECISION}": f"/records/settle/{DECISION}",
        "/records/reset": "/records/reset",
        f"/records/reset/{RESET}": f"/records/reset/{RESET}",
    }


BARE = {"/keys/queue"}
"""Pages that a reader who has not signed in gets nothing of: they are about one key."""
CANARY = {
    *("/", "/part/group", "/part/alarms", "/record", "/record/journey", "/find", "/dlq", "/dlq/letter", "/keys"),
    *("/keys/queue", "/holds", "/policy", "/activity", "/records/reset"),
    *(f"/records/settle/{DECISION}", f"/records/reset/{RESET}"),
}
"""Pages that show a key, a value, a header, a text or a reason to those who have signed in."""


def fields_of(page: str) -> set[str]:
    """The fields that a page has: the columns of its tables, and the rows of its lists of facts."""
    labels = re.findall(r'data-label="([^"]*)"', page)
    return {*labels, *re.findall(r"<tr><th(?: scope=\"row\")?>([^<]+)</th>", page)}


def cells(page: str, label: str) -> list[str]:
    found = re.findall(rf'<td data-label="{label}"[^>]*>(.*?)</td>', page, re.DOTALL)
    found += re.findall(rf'<th scope="row">{label}</th><td[^>]*>(.*?)</td>', page, re.DOTALL)
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in found]


@pytest.fixture(scope="module")
def signed_in(scene: Scene) -> Visitor:
    visitor = Visitor(scene)
    assert visitor.sign_in().status == 303
    return visitor


def test_no_page_shows_a_visitor_what_is_in_records_or_why_an_operator_acted(scene: Scene) -> None:
    for name, path in pages(scene).items():
        answer = Visitor(scene).get(path)
        assert answer.status == (303 if name in BARE else 200), path
        shown = answer.body.decode().replace(path.partition("?")[2], "")
        assert MARK not in unescape(shown), path


def test_whoever_has_signed_in_sees_all_of_it(scene: Scene, signed_in: Visitor) -> None:
    shown = {name for name, path in pages(scene).items() if MARK in signed_in.get(path).body.decode()}
    assert shown >= CANARY


def test_every_field_of_every_page_is_open_or_needs_a_sign_in(scene: Scene, signed_in: Visitor) -> None:
    """Given a new field, then this fails until somebody has decided who may see it."""
    for name, path in pages(scene).items():
        known = POLICY if name == "/policy" else OPEN | GATED
        assert fields_of(signed_in.get(path).body.decode()) <= known, path
        if name in BARE | {"/policy"}:
            continue
        page = Visitor(scene).get(path).body.decode()
        for label in GATED:
            assert {*cells(page, label)} <= {"(hidden)", ""}, (path, label)


def test_every_link_leads_to_a_page_of_this_list(scene: Scene, signed_in: Visitor) -> None:
    found = set[str]()
    for path in pages(scene).values():
        links = re.findall(r'(?:href|hx-get)="(/[^"?]*)', signed_in.get(path).body.decode())
        found |= {link for link in links if not link.startswith("/static/")}
    assert found <= pages(scene).keys() | {"/sign-in"}


@pytest.mark.parametrize("field", ["key", "contains"])
def test_a_visitor_searches_dead_letters_by_id_and_never_by_content(scene: Scene, field: str) -> None:
    """Given a search by key or value, then it is refused whatever it would find: a count is an answer too."""
    for text in (KEY.decode(), VALUE.decode(), "nothing-has-this"):
        assert Visitor(scene).get(f"/dlq?{urlencode({field: text})}").status == 403
    by_id = Visitor(scene).get(f"/dlq?{urlencode({'id': f'{scene.group.main}:0:7'})}")
    page = by_id.body.decode()
    assert (by_id.status, f"{scene.group.main}:0:7" in page, MARK in page) == (200, True, False)


def test_a_hold_says_to_visitors_what_it_is_about_and_who_began_it(scene: Scene) -> None:
    for path in ("/holds", "/part/alarms"):
        page = Visitor(scene).get(path).body.decode()
        assert f"topic={scene.group.main} key=(hidden)" in page
        assert "ann" in page
