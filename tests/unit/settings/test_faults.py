"""Every class of fault: refused with the key, the value, what is allowed and its origin, all of them together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.sidecar.settings import GOOD, problems, write_good

DURATION = "with a unit: {0}s or {0}ms, say"
TOPIC_KEYS = "{name, tags, drains, path, timeout, concurrency, content_type, rate}"
SINGLE: list[tuple[str, str]] = [
    ("group=a b", "group = a b: must be letters of ASCII, digits and . _ -"),
    ("topics=[]", "topics"),
    ("topics=orders", f"topics = orders: must be a list of topics, each a name or {TOPIC_KEYS}; write [orders]"),
    (
        "topics=orders, invoices",
        f"topics = orders, invoices: must be a list of topics, each a name or {TOPIC_KEYS}; write [orders, invoices]",
    ),
    (
        "deliver.dead_letter_statuses=422",
        "deliver.dead_letter_statuses = 422: must be a list of HTTP statuses from 300 to 599; write [422]",
    ),
    (
        "deliver.dead_letter_statuses=22",
        "deliver.dead_letter_statuses = 22: must be a list of HTTP statuses from 300 to 599 (--set)",
    ),
    ("topics=[5]", "topics[0] = 5: must be a topic's name or {name, …}"),
    ("topics=[{name: a, tag: b}]", "topics[0].tag: unknown key; did you mean topics[0].tags?"),
    ("topics=[{name: a, tags: 'A|B'}]", "topics[0].tags = A|B: must be * or tags joined by ||"),
    ("topics=['a b']", "topics[0].name = a b: must be a topic's name"),
    ("kafka=x", "kafka: must be a mapping of librdkafka properties"),
    ("start=newest", "start = newest: must be earliest or latest"),
    ("deliver=5", "deliver = 5: must be a mapping"),
    ("deliver.mode=psuh", "deliver.mode = psuh: must be push or pull or relay"),
    ("deliver.mode=null", "deliver.mode = "),
    ("deliver.url=ftp://127.0.0.1/", "deliver.url = ftp://127.0.0.1/: must be http(s)://host:port/path or unix:"),
    ("deliver.url=https://example.com/", "deliver.url = https://example.com/: is not on loopback"),
    ("deliver.url=https:///e", "deliver.url = https:///e: must be http(s)://host:port/path"),
    ("deliver.tls.ca_file=/ca", "deliver.tls: has no effect without https in deliver.url or deliver.health_url"),
    ("deliver.tls.ca_file=ca.pem", "deliver.tls.ca_file = ca.pem: must be the absolute path of a file"),
    ("deliver.bearer_token_file=t0ken", "deliver.bearer_token_file = ********: must be the absolute path of a file"),
    (
        "deliver.signing_secret_file=whsec_AA",
        "deliver.signing_secret_file = ********: must be the absolute path of a file",
    ),
    ("deliver.url=http://127.0.0.1:99999/", "deliver.url = http://127.0.0.1:99999/: must be http(s)://host:port/path"),
    ("deliver.url=unix:app.sock:/x", "deliver.url = unix:app.sock:/x: must be http(s)://host:port/path or unix:"),
    ("deliver.url=unix:/run/app.sock", "deliver.url = unix:/run/app.sock: must be http(s)://host:port/path or unix:"),
    ("deliver.url=http://example.com/", "deliver.url = http://example.com/: is not on loopback"),
    ("deliver.health_url=http://10.0.0.1/", "deliver.health_url = http://10.0.0.1/: is not on loopback"),
    ("deliver.url=null", "deliver.url: is required in push mode"),
    ("deliver.concurrency=0", "deliver.concurrency = 0: must be a whole number from 1 to 65536"),
    ("deliver.concurrency=true", "deliver.concurrency = true: must be a whole number"),
    ("deliver.concurrency=1.5", "deliver.concurrency = 1.5: must be a whole number"),
    ("deliver.concurrency='5'", 'deliver.concurrency = "5": must be a whole number'),
    ("deliver.timeout=15", 'deliver.timeout = "15": must be a duration from 10ms to 1d, ' + DURATION.format(15)),
    ("deliver.timeout=1 hour", "deliver.timeout = 1 hour: must be a duration from 10ms to 1d, like 500ms"),
    ("deliver.timeout=2d", "deliver.timeout = 2d: must be a duration from 10ms to 1d"),
    ("deliver.order=keys", "deliver.order = keys: must be none or key or partition"),
    ("deliver.broadcast=5", "deliver.broadcast = 5: must be true or false"),
    ("deliver.envelope=maybe", "deliver.envelope = maybe: must be true or false"),
    ("deliver.batch.max_size=1025", "deliver.batch.max_size = 1025: must be a whole number from 1 to 1024"),
    ("deliver.batch.max_wait=451s", "deliver.batch.max_wait = 451s: must be a duration from 0s to 450s"),
    ("deliver.content_type=json", "deliver.content_type = json: must be auto, or a media type like application/json"),
    (
        "deliver.content_type=Application/vnd.reconsume+JSON",
        "deliver.content_type = Application/vnd.reconsume+JSON: application/vnd.reconsume+json is the type of the",
    ),
    ("topics=[{name: orders, content_type: a b}]", "topics[0].content_type = a b: must be auto, or a media type"),
    ("deliver.forward_headers=x-*", "deliver.forward_headers = x-*: must be a list of header names or globs"),
    ("deliver.forward_headers=['x-*']", "deliver.forward_headers[0] = x-*: has 2 plain characters, and a glob needs 3"),
    ("deliver.forward_headers=['[a-z]?*']", "deliver.forward_headers[0] = [a-z]?*: has 0 plain characters"),
    (
        "deliver.forward_headers=[Content_Length]",
        "deliver.forward_headers[0] = Content_Length: is a header that frames",
    ),
    ("deliver.forward_headers=['reconsume-*']", "deliver.forward_headers[0] = reconsume-*: is a header that frames"),
    ("deliver.forward_headers=['a b']", "deliver.forward_headers[0] = a b: must be a header's name or a glob"),
    (
        "deliver.idempotency=ce_id",
        "deliver.idempotency = ce_id: must be {from: id}, {from: ce_id}, {from: header, name",
    ),
    ("deliver.idempotency={from: key}", "deliver.idempotency.from = key: must be one of id, ce_id, header, json"),
    ("deliver.idempotency={name: order-id}", "deliver.idempotency.from: must be one of id, ce_id, header, json"),
    ("deliver.idempotency={from: header}", "deliver.idempotency.name: is required"),
    ("deliver.idempotency={from: header, name: a b}", "deliver.idempotency.name = a b: must be the name of a header"),
    ("deliver.idempotency={from: json}", "deliver.idempotency.pointer: is required"),
    ("deliver.idempotency={from: json, pointer: a}", "deliver.idempotency.pointer = a: must be a JSON pointer"),
    ("deliver.idempotency={from: json, pointer: /a~2}", "deliver.idempotency.pointer = /a~2: must be a JSON pointer"),
    ("deliver.idempotency={from: id, name: x}", "deliver.idempotency.name: unknown key"),
    (
        "deliver.dead_letter_statuses=[200, 400]",
        "deliver.dead_letter_statuses[0] = 200: must be a whole",
    ),
    (
        "deliver.buffer_memory=16",
        'deliver.buffer_memory = "16": must be a size from 1MiB to 1GiB, with a unit: 16KiB or 16MiB',
    ),
    (
        "deliver.buffer_memory=16MB",
        "deliver.buffer_memory = 16MB: must be a size from 1MiB to 1GiB, in KiB, MiB or GiB",
    ),
    ("retry.max_reconsume_times=-1", "retry.max_reconsume_times = -1: must be a whole number from 0 to 999999"),
    ("retry.max_reconsume_times=1000000", "retry.max_reconsume_times = 1000000: must be"),
    ("retry.ladder=rabbit", "retry.ladder = rabbit: must be rocketmq, pulsar, a list of delays, or a formula"),
    ("retry.ladder=[]", "retry.ladder = []: must be a list of 1 to 64 delays"),
    ("retry.ladder=[10s, 5]", "retry.ladder[1] = 5: must be a duration from 1s to 10d"),
    ("retry.ladder=[11d]", "retry.ladder[0] = 11d: must be a duration from 1s to 10d"),
    ("retry.ladder={inital: 5s}", "retry.ladder.inital"),
    ("retry.ladder={multiplier: 0.5}", "retry.ladder.multiplier = 0.5: must be a number from 1 to 100"),
    ("retry.ladder={initial: 1h, max: 1m}", "retry.ladder: "),
    ("retry.levels=[10s, 5s]", "retry.ladder: the list of levels must rise"),
    ("retry.levels=[900ms]", "retry.levels[0] = 900ms: must be a duration from 1s to 10d"),
    ("retry.ordered_interval=31s", "retry.ordered_interval = 31s: must be a duration from 10ms to 30s"),
    ("retry.ordered_max_times=-1", "retry.ordered_max_times = -1: must be a whole number from 0 to 999999"),
    ("retry.max_deaths=0", "retry.max_deaths = 0: must be a whole number from 1 to 1000"),
    ("retry.understand=spring", "retry.understand = spring: must be a list of spring, pulsar, smallrye, rocketmq"),
    ("retry.understand=[kafka]", "retry.understand[0] = kafka: must be spring or pulsar or smallrye or rocketmq"),
    ("pull.min_invisible=13h", "pull.min_invisible = 13h: must be a duration from 10ms to 12h"),
    ("topic_prefix=x", "topic_prefix = x: must be {group} or {topic}-{group}"),
    ("api.listen=8471", 'api.listen = "8471": must be host:port, [v6]:port or unix:/path/of.sock'),
    ("api.listen=127.0.0.1:99999", "api.listen = 127.0.0.1:99999: must be host:port"),
    ("api.listen=0.0.0.0:8471", "api.listen = 0.0.0.0:8471: is outside loopback, and needs api.token_file"),
    ("api.probe_listen=127.0.0.1:8471", "api.probe_listen = 127.0.0.1:8471: is the same as api.listen"),
    ("api.listen=unix:run/x.sock", "api.listen = unix:run/x.sock: must name the socket by its absolute path"),
    ("view.enabled=5", "view.enabled = 5: must be true or false"),
    ("view.folder=data", "view.folder = data: must be the absolute path of a folder"),
    ("labels=payments", "labels = payments: must be a mapping of at most 8 names to texts"),
    ("labels={" + ", ".join(f"l{n}: x" for n in range(9)) + "}", "labels = "),
    ("labels={group: x}", "labels.group = x: the name is taken: the metrics have a label group of their own"),
    ("labels={version: '1'}", 'labels.version = "1": the name is taken'),
    ("labels={Team: x}", "labels.Team = x: the name must have a-z, 0-9 and _"),
    ("labels={team: 7}", "labels.team = 7: must be a text of 1 to 200 characters; write it in quotes"),
    ("labels={team: ''}", "labels.team"),
    ("labels={a: " + "x" * 200 + ", b: " + "x" * 200 + ", c: " + "x" * 200 + "}", "labels = "),
    ("policy_mode=loose", "policy_mode = loose: must be agreed or own or strict"),
    ("drain_timeout=2h", "drain_timeout = 2h: must be a duration from 0s to 1h"),
    ("lock_timeout=5m", "lock_timeout = 5m: must be shorter than kafka's max.poll.interval.ms, 300000 ms"),
    ("log.level=loud", "log.level = loud: must be debug or info or warning or error"),
    ("retry.max_times=3", "retry.max_times: unknown key; did you mean retry.max_reconsume_times?"),
    ("bootstrap.server=b:1", "bootstrap: unknown key; properties of librdkafka go under kafka, like kafka.bootstrap.s"),
    ("lgo.level=info", "lgo: unknown key; did you mean log?"),
    ("sasl.password=x", "sasl: unknown key"),
    ("topics=[orders, billing-RETRY]", "topics: with group billing: billing-RETRY cannot be a main topic"),
    ("group=" + "g" * 240, "topics: with group ggg"),
]


@pytest.mark.parametrize(("change", "sentence"), SINGLE, ids=[change for change, _ in SINGLE])
def test_a_fault_names_key_value_and_what_is_allowed(tmp_path: Path, change: str, sentence: str) -> None:
    found = problems(write_good(tmp_path), [change])
    assert len(found) == 1, found
    assert found[0].startswith(sentence)


def test_all_faults_are_reported_together_each_with_its_origin(tmp_path: Path) -> None:
    file = write_good(tmp_path, "retry:\n  max_reconsume_times: -1\nbogus: 1\n")
    found = problems(file, ["deliver.mode=psuh", "api.listen=0.0.0.0:1"], {"RECONSUME_DRAIN_TIMEOUT": "10"})
    assert {sentence.split(" ")[0].rstrip(":"): sentence.rpartition(" (")[2].rstrip(")") for sentence in found} == {
        "retry.max_reconsume_times": f"{file}, line 8",
        "bogus": f"{file}, line 9",
        "deliver.mode": "--set",
        "drain_timeout": "RECONSUME_DRAIN_TIMEOUT",
        "api.listen": "--set",
    }


def test_a_long_value_is_shown_in_no_time(tmp_path: Path) -> None:
    """Given a value that seems to be a hundred thousand URLs, then its fault does not look for each one's password."""
    begun = time.process_time()
    (found,) = problems(write_good(tmp_path), ["deliver.url=http://127" + "tp://127" * 100_000])
    assert found.startswith("deliver.url = http://127tp://")
    assert time.process_time() - begun < 3.0


def test_what_is_required_is_named_and_so_is_the_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = problems(None, ["start=latest"])
    assert found[:3] == ["group: is required", "topics: is required", "kafka: is required"]
    assert found[-1] == "there is no reconsume.yaml here; name a file with -c"
    assert problems(None) == found[-1:], "where nothing is given, nothing else is said"


def test_a_wrong_setting_is_not_blamed_a_second_time_on_what_depends_on_it(tmp_path: Path) -> None:
    assert len(problems(write_good(tmp_path), ["retry.ladder=[1]", "retry.levels=[2s, 1s]"])) == 1


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    found = problems(tmp_path / "nowhere.yaml")
    assert found[0] == f"{tmp_path / 'nowhere.yaml'}: there is no such file"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("group: [a\n", "is not YAML on line 2, column 1: a bracket is opened and not closed: `]` is missing"),
        ("deliver:\n\turl: x\n", "is not YAML on line 2, column 1: a tab is where only spaces may be"),
        ("group: *s3cret\n", "is not YAML on line 1, column 8: a value that begins with `*` refers to an anchor"),
        ("group: a: b\n", "is not YAML on line 1, column 9: a `:` is inside a value: put the value in quotes, or"),
        ("group: a\n topics: b\n", "is not YAML on line 2, column 8: a `:` is inside a value"),
        ("group:\n  a: 1\n b: 2\n", "is not YAML on line 3, column 2: this does not fit what is before it: look at"),
        ("group: 'a\n", "is not YAML on line 2, column 1: quotes are opened and not closed"),
        ("topics: [a\ngroup: b\n", "is not YAML on line 2, column 6: `]` or a comma is missing before this"),
        ("group: @a\n", "is not YAML on line 1, column 8: a value cannot begin with '@': put it in quotes"),
        ("topics: - a\n", "is not YAML on line 1, column 9: an item of a list, `-`, must begin on a line of its own"),
        ("topics: [a]]\n", "is not YAML on line 1, column 12: this does not fit what is before it"),
        ('group: "\\q"\n', "is not YAML on line 1, column 10: in double quotes a `\\` begins an escape"),
        ("group: a\n---\ngroup: b\n", "is not YAML on line 2, column 1: there is a second document"),
        ("- group\n", "must hold keys and values"),
        ("just text\n", "must hold keys and values"),
        ("group: a\ngroup: b\n", "group: is written twice, on lines 1 and 2"),
        ("deliver:\n  url: a\n  mode: push\n  url: b\n", "deliver.url: is written twice, on lines 2 and 4"),
        ("topics: &a [*a]\n", "is not YAML on line 1, column 13: an alias refers to the value that holds it"),
        ("group: 2026-13-45\n", "holds a value that cannot be read"),
        ("group: !!python/object:os.system x\n", "is not YAML on line 1"),
        ("topics: [a]\ngroup: \x00\n", "is not YAML on line 2, column 8: there is a character that cannot be printed"),
    ],
)
def test_a_broken_file_is_a_fault_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text, encoding="utf-8")
    assert problems(file)[0].startswith(f"{file}: {sentence}")


def test_a_file_that_is_not_utf8_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("group: b\xe9\n".encode("latin-1"))
    assert problems(file)[0] == f"{file}: cannot be read: it is not UTF-8"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "cannot be read" in problems(tmp_path)[0]


@pytest.mark.parametrize("key", ["5: x", "true: x", "null: x", "[a]: x"])
def test_a_key_that_is_no_text_is_a_fault(tmp_path: Path, key: str) -> None:
    assert problems(write_good(tmp_path, f"{key}\n"))


def test_a_long_value_is_cut_and_kept_on_one_line(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path, "start: |\n" + "  word\n" * 100))
    assert "\n" not in problem
    assert len(problem) < 200


def test_the_good_configuration_of_these_tests_is_good(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path, "bogus: 1\n"))
    assert problem.startswith("bogus: unknown key")
    assert GOOD.startswith("group: billing")
