"""The list of dead letters: found, ticked, redriven, dismissed, exported; on a real broker, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.events import State, decode_event
from reconsume.topics.policy_record import SettlementHeard, parse_record
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter
from tests.support.view_rows import wall
from tests.ui.scene import Scene, dashboard
from tests.ui.web import Visitor

HOUR = 3_600_000
VALUES = (b'{"sku": "A-17"}', b'{"sku": "B-2"}', b"\xff\x00", None, b"", b'{"sku": "A-99"}')


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """Six dead letters: 0 and 5 of http-503, the others of bad-sku; 4 came back too often, 1 is of yesterday."""
    group = create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=1, also=UNUSED)
    now = wall()
    letters = [
        dead_letter(
            group, number, value, key=b"customer-%d" % (number % 3), redrives=3 if number == 4 else 0,
            reason="http-503: busy" if number in (0, 5) else "bad-sku: not sold",
            at=now - (25 * HOUR if number == 1 else 60_000 - number),
        )
        for number, value in enumerate(VALUES)
    ]  # fmt: skip
    produce(group.bootstrap, group.dlq, letters)
    return group


@pytest.fixture(scope="module")
def shown(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with dashboard(group, tmp_path_factory.mktemp("letters")) as scene:
        yield scene


@pytest.fixture
def visitor(shown: Scene) -> Visitor:
    """A user who is signed in."""
    visitor = Visitor(shown)
    visitor.sign_in()
    return visitor


def listed(visitor: Visitor, **search: str) -> list[int]:
    """The numbers of the dead letters that a search lists."""
    body = visitor.get(f"/dlq?{urlencode(search)}").body.decode()
    return sorted(int(number) for number in re.findall(r'<a class="mono" href="[^"]+">[\w-]+:0:(\d+)</a>', body))


def act(visitor: Visitor, path: str, fields: Mapping[str, str], ticked: Sequence[str] = ()) -> tuple[int, str]:
    """Send a form of the list; `ticked`: places."""
    pairs = [*{"csrf": visitor.csrf(), **fields}.items(), *(("place", place) for place in ticked)]
    answer = visitor.post(path, pairs)
    return answer.status, answer.body.decode()


def plan_in(body: str) -> str:
    found = re.search(r'name="plan" value="([^"]+)"', body)
    assert found is not None, body
    return found[1]


def audited(scene: Scene) -> list[dict[str, object]]:
    return [json.loads(line) for line in scene.audit.read_text().splitlines()]


SEARCHES: dict[str, tuple[dict[str, str], list[int]]] = {
    "nothing": ({}, [0, 1, 2, 3, 4, 5]),
    "a reason": ({"reason": "http-503"}, [0, 5]),
    "a key": ({"key": "customer-1"}, [1, 4]),
    "what the value has": ({"contains": '"A-'}, [0, 5]),
    "a key and what the value has": ({"key": "customer-0", "contains": "A-17"}, [0]),
    "an age": ({"since": "6h"}, [0, 2, 3, 4, 5]),
    "ready": ({"state": "ready"}, [0, 1, 2, 3, 5]),
    "quarantined": ({"state": "quarantined"}, [4]),
    "open": ({"state": "open"}, [0, 1, 2, 3, 4, 5]),
    "redriven": ({"state": "redriven"}, []),
    "all, also dismissed": ({"state": "all"}, [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize(("search", "found"), SEARCHES.values(), ids=SEARCHES)
def test_dead_letters_are_found_by(visitor: Visitor, search: dict[str, str], found: list[int]) -> None:
    assert listed(visitor, **search) == found


def test_without_a_choice_the_open_ones_are_listed_and_a_link_leads_to_all(kafka: Broker, tmp_path: Path) -> None:
    """Given three dead letters, one of which is redriven and one dismissed, then one is left to be looked at."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.dlq, [dead_letter(group, number, reason="bad-sku") for number in range(3)])
    with dashboard(group, tmp_path) as scene:
        visitor, config = Visitor(scene), ("-c", str(tmp_path / "reconsume.yaml"), "--yes")
        assert reconsume("dlq", "redrive", "--id", f"{group.main}:0:0", *config).exit_code == 0
        assert reconsume("settle", f"{group.main}:0:1", "--commit", "--why", "a test", *config).exit_code == 0
        assert listed(visitor) == [2]
        assert listed(visitor, state="all") == [0, 1, 2]
        body = visitor.get(f"/dlq?id={group.main}:0:0").body.decode()
        assert "No such dead letters in this state" in body
        assert f"/dlq?{urlencode({'id': f'{group.main}:0:0', 'state': 'all'})}".replace("&", "&amp;") in body


def test_copies_are_not_open_have_no_tick_box_and_a_plan_for_nothing_says_so(kafka: Broker, tmp_path: Path) -> None:
    """Given a dead letter that was copied back twice, then one counts, and only that one can be acted on."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    letters = [dead_letter(group, 0, b"v", reason="bad-sku"), *[dead_letter(group, 1, b"v", reason="bad-sku")] * 3]
    produce(group.bootstrap, group.dlq, letters)
    with dashboard(group, tmp_path) as scene:
        visitor = Visitor(scene)
        visitor.sign_in()
        assert (listed(visitor), listed(visitor, state="all"), listed(visitor, state="copy")) == (
            [0, 1], [0, 1, 1, 1], [1, 1],
        )  # fmt: skip
        body = visitor.get("/dlq").body.decode()
        assert ("all 2 that match" in body, "Found: 2 of the 4 dead letters" in body) == (True, True)
        boxes = 'type="checkbox" name="place"'
        counts = [visitor.get(f"/dlq?state={state}").body.decode().count(boxes) for state in ("all", "copy")]
        assert counts == [2, 0]
        copies = re.findall(r'href="/dlq/letter\?place=([^"]+)"', visitor.get("/dlq?state=copy").body.decode())
        page = visitor.get(f"/dlq/letter?place={copies[0]}").body.decode()
        assert ("/dlq/dismissal" in page, "Plan its redrive" in page, "copy of another one" in page) == (
            False, False, True,
        )  # fmt: skip
        places = [copy.replace("%3A", ":") for copy in copies]
        for ticked, left in ((places[:1], "Left: 1 copy of another one."), (places, "Left: 2 copies of another one.")):
            body = act(visitor, "/dlq/dismissal", {"scope": "picked"}, ticked)[1]
            assert ("Nothing to dismiss:" in body, left in body, 'name="plan"' in body) == (True, True, False)
            body = act(visitor, "/dlq/plan", {"scope": "picked"}, ticked)[1]
            assert ("Nothing to redrive:" in body, 'name="plan"' in body) == (True, False)
        for path, said in (("/dlq/dismissal", "Nothing to dismiss"), ("/dlq/plan", "Nothing to redrive:")):
            body = act(visitor, path, {"reason": "no-such"})[1]
            assert (said in body, "there are no such dead letters." in body) == (True, True)


def test_a_row_shows_key_text_and_how_the_value_begins(visitor: Visitor) -> None:
    body = visitor.get("/dlq").body.decode()
    for part in ("customer-2", "not sold", "{&#34;sku&#34;: &#34;A-17&#34;}", "0xff00", "(null)", "(empty)"):
        assert part in body, part


BAD: dict[str, tuple[dict[str, str], list[str], int]] = {
    "nothing is ticked": ({"scope": "picked"}, [], 400),
    "ticked, and all": ({"scope": "all"}, ["DLQ:0:0"], 400),
    "ten thousand": ({"scope": "picked"}, [f"DLQ:0:{number}" for number in range(10_000)], 400),
    "another group's": ({"scope": "picked"}, ["other-DLQ:0:0"], 400),
    "a forged place": ({"scope": "picked"}, ["../../etc/passwd"], 400),
    "an unknown state": ({"state": "dead"}, [], 400),
    "a filter of a million": ({"reason": "x" * 1_000_000}, [], 400),
    "a huge form": ({"reason": "x" * 1_200_000}, [], 413),
    "a forged token": ({"csrf": "x"}, [], 403),
}


@pytest.mark.parametrize("path", ["/dlq/plan", "/dlq/dismissal"])
@pytest.mark.parametrize(("fields", "ticked", "status"), BAD.values(), ids=BAD)
def test_a_bad_form_is_told_and_does_nothing(
    visitor: Visitor, shown: Scene, group: GroupTopics, path: str, fields: dict[str, str], ticked: list[str],
    status: int,
) -> None:  # fmt: skip
    before = audited(shown)
    code, body = act(visitor, path, fields, [place.replace("DLQ:", f"{group.dlq}:", 1) for place in ticked])
    assert code == status
    assert "Nothing was done: " in body or code == 413
    assert [row["action"] for row in audited(shown)[len(before) :]] == []


def test_plans_that_are_not_there_and_reasons_and_rates_that_are_none_do_nothing(visitor: Visitor) -> None:
    body = act(visitor, "/dlq/dismissal", {"scope": "all"})[1]
    for why in ("", " ", "x" * 2_000, "a\nb"):
        assert act(visitor, "/dlq/dismiss", {"plan": plan_in(body), "why": why})[0] == 400
    assert act(visitor, "/dlq/dismiss", {"plan": "x", "why": "seen"})[0] == 409
    planned = plan_in(act(visitor, "/dlq/plan", {"scope": "all"})[1])
    assert act(visitor, "/dlq/redrive", {"plan": planned, "rate": "nan"})[0] == 400
    assert act(visitor, "/dlq/redrive", {"plan": plan_in(body), "rate": ""})[0] == 409, "a plan of another kind"
    assert act(visitor, "/dlq/plan", {"state": "quarantined"})[0] == 409, "what a redrive leaves is not redriven"
    assert listed(visitor) == [0, 1, 2, 3, 4, 5]


def test_ticked_letters_are_dismissed_with_a_reason_and_leave_lists_and_redrives(
    visitor: Visitor, shown: Scene, group: GroupTopics
) -> None:
    places = [f"{group.dlq}:0:{offset}" for offset in (2, 3)]
    status, body = act(visitor, "/dlq/dismissal", {"scope": "picked"}, places)
    assert (status, "Dismiss 2 dead letters for good?" in body) == (200, True)
    assert listed(visitor, reason="bad-sku") == [1, 2, 3, 4], "a plan changes nothing"
    form = {"plan": plan_in(body), "why": "test records"}
    assert act(visitor, "/dlq/dismiss", form)[0] == 303
    assert act(visitor, "/dlq/dismiss", form)[0] == 409, "a plan is used once"
    until(lambda: audited(shown)[-1]["action"] == "dismiss-result", SECONDS, "the dismissal has ended")
    assert (listed(visitor, reason="bad-sku"), listed(visitor, state="dismissed")) == ([1, 4], [2, 3])
    heard = [parse_record(row.key, row.value) for row in dump(group.bootstrap, group.names.policy)]
    records = [one.record for one in heard if isinstance(one, SettlementHeard) and one.record is not None]
    assert [(one.how, one.why, one.who) for one in records] == [("commit", "test records", "alice@ui")] * 2
    assert {one.position for one in records} == set(places)
    events = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    assert [event.state for event in events] == [State.DISMISSED] * 2  # type: ignore[union-attr]
    last = audited(shown)[-3:]
    assert [row["action"] for row in last if row["action"] != "sign-in"][-2:] == ["dismiss", "dismiss-result"]
    assert (last[-1]["records"], last[-1]["who"]) == (2, "alice")


def test_ticked_letters_are_redriven_at_a_rate(visitor: Visitor, shown: Scene, group: GroupTopics) -> None:
    places = [f"{group.dlq}:0:{offset}" for offset in (0, 2, 4)]
    status, body = act(visitor, "/dlq/plan", {"scope": "picked"}, places)
    assert (status, "Redrive 1 dead letter to" in body) == (200, True), "one is ready"
    assert (">dismissed<" in body, ">quarantined<" in body) == (True, True)
    assert act(visitor, "/dlq/redrive", {"plan": plan_in(body), "rate": "50"})[0] == 303
    until(lambda: audited(shown)[-1]["action"] == "redrive-result", SECONDS, "the redrive has ended")
    (redrive,) = [row for row in audited(shown) if row["action"] == "redrive"]
    assert (redrive["rate"], redrive["letters"], redrive["filter"]) == (50.0, 1, {"id": sorted(places)})
    (row,) = dump(group.bootstrap, group.names.ready)
    assert dict(row.headers)[wire.ORIGIN_MESSAGE_ID] == f"{group.main}:0:0".encode()
    assert (listed(visitor, state="redriven"), listed(visitor, state="ready")) == ([0], [1, 5])
    assert listed(visitor, state="open") == [1, 4, 5]
