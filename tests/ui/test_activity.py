"""The page Activity has what the command line did: who, when, what for, how many records, and how it ended."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.operations import ActionStore
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.action_record import MOST_ACTIONS, ActionRecord, action_key, render_action
from reconsume.topics.hold_record import HOLD
from reconsume.topics.names import Kind
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter
from tests.support.view_rows import wall
from tests.ui.scene import Scene, dashboard, settings_of
from tests.ui.web import Visitor

HOUR = 3_600_000


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """Four dead letters, an hour old."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    letters = [dead_letter(group, number, reason="bad-sku", at=wall() - HOUR) for number in range(4)]
    produce(group.bootstrap, group.dlq, letters)
    return group


@pytest.fixture
def shown(group: GroupTopics, tmp_path: Path) -> Iterator[Scene]:
    with dashboard(group, tmp_path) as scene:
        yield scene


def commanded(scene: Scene, *words: str) -> str:
    """What a command prints; it must end well."""
    done = reconsume(*words, "-c", str(scene.audit.parent / "reconsume.yaml"), "--set", "view.source=events")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def actions(scene: Scene) -> list[tuple[str, str, str]]:
    """Who did what, and more, of the page's rows that came from the policy topic, the newest first."""
    visitor = Visitor(scene)
    visitor.sign_in()
    body = visitor.get("/activity").body.decode()
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body) if "<td" in row]
    texts = [[html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in row] for row in rows]
    return [(who, what, more) for _, who, token, _, what, more in texts if not token]


def test_redrive_dismissal_purge_and_import_are_there_with_who_what_for_and_how_many(
    shown: Scene, group: GroupTopics, tmp_path: Path
) -> None:
    """Given four people who each run a command, then the page has one row for each run, in the order of their times."""
    first, second = (f"{group.main}:0:{number}" for number in (0, 1))
    kept = tmp_path / "kept.jsonl"
    kept.write_text(commanded(shown, "dlq", "export"))
    commanded(shown, "dlq", "redrive", "--id", first, "--who", "ann@laptop", "--yes")
    commanded(shown, "settle", second, "--commit", "--why", "a test record", "--who", "bob@laptop", "--yes")
    commanded(shown, "dlq", "purge", "--until", "30m", "--who", "cleo@laptop", "--confirm", group.group)
    commanded(shown, "dlq", "import", str(kept), "--who", "dan@laptop", "--yes")
    assert [(who, what) for who, what, _ in actions(shown)] == [
        ("dan@laptop", "import"), ("cleo@laptop", "purge"), ("bob@laptop", "dismiss"), ("ann@laptop", "redrive"),
    ]  # fmt: skip
    more = [more for *_, more in actions(shown)]
    assert "kept.jsonl; records 4" in more[0]
    assert "records 4" in more[1]
    assert more[2] == f"what {second}; why a test record; records 1"
    assert more[3] == f"what id {first}; records 1"


def test_the_journey_says_who_redrove_and_who_dismissed_on_the_page_and_in_json(
    shown: Scene, group: GroupTopics
) -> None:
    first, second = (f"{group.main}:0:{number}" for number in (0, 1))
    commanded(shown, "dlq", "redrive", "--id", first, "--who", "ann@laptop", "--yes")
    commanded(shown, "settle", second, "--commit", "--why", "a test record", "--who", "bob@laptop", "--yes")
    for ident, state, who in ((first, "REDRIVEN", "ann@laptop"), (second, "DISMISSED", "bob@laptop")):
        rows = json.loads(commanded(shown, "dlq", "show", ident, "-o", "json"))
        assert [(event["state"], event["who"]) for event in rows[0]["journey"]] == [(state, who)]
        page = Visitor(shown).get(f"/record/journey?id={ident}").body.decode()
        assert f'<td data-label="Who">{who}</td>' in page


def test_a_hold_and_its_release_are_there_as_long_as_their_records_are(shown: Scene, group: GroupTopics) -> None:
    """Given a hold of the command line that was released, written again by one that has not heard of it, and deleted,
    then who held and who released are both on the page."""
    held = ("--topic", group.main, "--for", "20m", "--why", "the ledger is repaired")
    commanded(shown, "hold", *held, "--who", "ann@laptop", "--yes")
    first, *_ = dump(group.bootstrap, group.names.policy)
    ident = (first.key or b"").removeprefix(HOLD).decode()
    commanded(shown, "release", ident, "--who", "bob@laptop", "--yes")
    both = [
        ("bob@laptop", "release", f"hold {ident}; what topic={group.main}"),
        ("ann@laptop", "hold", f"hold {ident}; what topic={group.main}; lasts 20m; why the ledger is repaired"),
    ]
    assert actions(shown) == both
    produce(group.bootstrap, group.names.policy, [Out(first.value, first.key), Out(None, first.key)])
    assert actions(shown) == both


def test_a_hold_of_the_dashboard_is_there_once_and_its_release_with_who_released_it(
    shown: Scene, group: GroupTopics
) -> None:
    visitor = Visitor(shown)
    visitor.sign_in()
    fields = {"csrf": visitor.csrf(), "topic": group.main, "for": "20m", "why": "the ledger is repaired"}
    assert [visitor.post("/holds/begin", fields).status for _ in range(2)] == [303, 303]
    keys = [row.key or b"" for row in dump(group.bootstrap, group.names.policy)]
    one, other = (key.removeprefix(HOLD).decode() for key in keys)
    assert visitor.post("/holds/release", {"csrf": fields["csrf"], "hold": one}).status == 303
    commanded(shown, "release", other, "--who", "bob@laptop", "--yes")
    assert visitor.post("/holds/release", {"csrf": fields["csrf"], "hold": other}).status == 409
    assert [(who, what) for who, what, _ in actions(shown)] == [("bob@laptop", "release")]
    chips = re.findall(r'<span class="chip plain">([a-z-]+)</span></td>', visitor.get("/activity").body.decode())
    assert sorted(chips) == sorted(["sign-in", "sign-in", *["hold", "hold-result", "release"] * 2, "release-result"])


def test_a_policy_that_was_withdrawn_says_so_and_what_it_was(shown: Scene) -> None:
    commanded(shown, "policy", "set", "max_deaths=5", "--who", "ann@laptop", "--yes")
    words = ("policy", "set", "--unset", "max_deaths", "--who", "bob@laptop", "--why", "it was a trial")
    commanded(shown, *words, "--yes")
    assert actions(shown) == [
        ("bob@laptop", "policy", "policy withdrawn; was max_deaths 5; why it was a trial"),
        ("ann@laptop", "policy", "max_deaths 5"),
    ]


def test_without_a_name_it_is_the_user_of_the_operating_system_and_a_bad_name_is_refused(
    shown: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "eve")
    commanded(shown, "dlq", "redrive", "--max", "1", "--yes")
    ((who, what, _),) = actions(shown)
    assert (who.partition("@")[0], bool(who.partition("@")[2]), what) == ("eve", True, "redrive")
    for name in ("", "a\nb", "\u202e", "x" * 257):
        config = str(shown.audit.parent / "reconsume.yaml")
        assert reconsume("dlq", "redrive", "--who", name, "--yes", "-c", config).exit_code == 2
    assert len(actions(shown)) == 1


def test_a_dry_run_and_a_plan_without_letters_are_no_actions(shown: Scene) -> None:
    commanded(shown, "dlq", "redrive", "--dry-run")
    commanded(shown, "dlq", "redrive", "--reason", "no-such", "--yes")
    commanded(shown, "dlq", "purge", "--until", "30m", "--dry-run")
    assert actions(shown) == []


def test_keys_and_texts_of_values_are_not_kept(shown: Scene) -> None:
    commanded(shown, "dlq", "redrive", "--key", "DE89 3704", "--reason", "bad-sku", "--yes")
    commanded(shown, "dlq", "redrive", "--contains", "order", "--reason", "bad-sku", "--yes")
    told = " ".join(more for *_, more in actions(shown))
    assert "DE89" not in told


def test_a_command_that_was_killed_is_there_without_its_end_and_hostile_text_is_text(
    shown: Scene, group: GroupTopics
) -> None:
    evil = ActionRecord("redrive", "<script>window.hurt=1</script>", 2**62, "<b>all</b>")
    produce(group.bootstrap, group.names.policy, [
        Out(render_action(ActionRecord("redrive", "ann@laptop", wall(), "all")), action_key("a1")),
        Out(render_action(evil), action_key("a2")),
        Out(b'{"action": "redrive", "who": "\\u202e", "at": 1, "v": 1}', action_key("a3")),
        Out(b"{", action_key("a4")),
    ])  # fmt: skip
    assert actions(shown) == [
        (evil.who, "redrive", "what <b>all</b>; end not known (yet)"),
        ("ann@laptop", "redrive", "what all; end not known (yet)"),
    ]
    visitor = Visitor(shown)
    visitor.sign_in()
    assert b"<script>window" not in visitor.get("/activity").body


def interrupted(store: ActionStore) -> None:
    """An action that ends early, after seven records."""
    with store.noted("redrive", "ann@laptop") as tally:
        tally.records = 7
        raise BrokerError("the broker went away")


def test_a_group_keeps_the_actions_that_were_written_last_whatever_time_they_claim(
    group: GroupTopics,
) -> None:
    old = [ActionRecord("redrive", f"user-{number}", 2**62, ended=1) for number in range(MOST_ACTIONS + 3)]
    told = [Out(render_action(record), action_key(f"old-{number}")) for number, record in enumerate(old)]
    produce(group.bootstrap, group.names.policy, told)
    store = ActionStore(Cluster({"bootstrap.servers": group.bootstrap}), group.names, pytest.fail)
    with pytest.raises(BrokerError):
        interrupted(store)
    kept = list(ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names).read().actions.values())
    assert len(kept) == MOST_ACTIONS
    assert (kept[-1].who, kept[-1].records, kept[-1].error) == ("ann@laptop", 7, "the broker went away")
    assert [record.who for record in kept[:-1]] == [record.who for record in old[4:]]


def test_without_a_policy_topic_the_command_says_so_and_does_its_work(kafka: Broker, tmp_path: Path) -> None:
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=(Kind.VIEW,))
    produce(group.bootstrap, group.dlq, [dead_letter(group, 1, reason="bad-sku")])
    settings_of(group, tmp_path)
    done = reconsume("dlq", "redrive", "--yes", "-c", str(tmp_path / "reconsume.yaml"))
    assert (done.exit_code, "1 redriven to" in done.stderr) == (0, True)
    assert f"this is not in the list of actions: {group.names.policy} does not exist" in done.stderr
