"""The comparison with peers: it measures one that runs, and judges truly what came of the records."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import go_peers
from benchmarks.peers.__main__ import prepared
from benchmarks.peers.catalogue import PEERS, YARDSTICK, plain
from benchmarks.peers.job import Job, Peer
from benchmarks.peers.judge import Account, Request, account
from benchmarks.peers.python_peers import command
from benchmarks.peers.runs import Started, at_an_everyday_load
from reconsume.sidecar.errors import SetupError
from tests.support.kafka.broker import Broker

DELAY, KILLED = 2_000.0, 10_000.0


def come(*deliveries: tuple[float, bool]) -> list[Request]:
    """The deliveries of one record, each when it came and whether it was accepted."""
    return [Request(age=1.0, at=at, accepted=accepted) for at, accepted in deliveries]


def judged(*records: list[Request]) -> Account:
    there = {number: deliveries for number, deliveries in enumerate(records) if deliveries}
    return account(there, len(records), DELAY, KILLED)


@pytest.mark.long
def test_a_loop_in_another_process_is_measured_at_its_load(kafka: Broker, group: str) -> None:
    def arguments(job: Job) -> list[str]:
        return ["requests", *plain(job)]  # the library comes with testcontainers: nothing is fetched

    loop = command(sys.executable, "bare_loop.py", arguments)
    ready = Started(Peer("loop", "in place", "", lambda: loop), loop)
    found = at_an_everyday_load(ready, kafka.bootstrap, group, seconds=0.5, warm_up=0.5)
    assert found.cpu > 0
    assert 0 < found.p50 <= found.p99
    assert found.peak > 10_000_000


def test_a_record_that_was_never_accepted_is_lost() -> None:
    assert judged(come((1, True)), come((1, False)), []).lost == 2


def test_each_delivery_more_than_needed_is_a_repetition() -> None:
    twice = come((1, True), (2, True))
    failed_once = come((1, False), (2_001, True))
    assert judged(twice, failed_once, [*failed_once, *come((2_002, True))]).repeated == 2


def test_a_retry_before_its_time_is_early() -> None:
    found = judged(come((1, False), (1_990, True)), come((1, False), (2_011, True)))
    assert found.early == 1
    assert found.late == (-11, 10)


def test_a_wait_that_the_kill_falls_into_says_nothing_of_punctuality() -> None:
    assert judged(come((9_000, False), (18_000, True))).late == ()


def test_a_record_that_waited_for_the_start_says_nothing_of_later_ones() -> None:
    requests = {0: [Request(900, 1, True)], 1: [Request(3, 2, True)]}
    assert account(requests, 2, DELAY, KILLED, started=1).waits == (3,)


def test_every_peer_has_its_own_name_and_a_page_to_check_it_against() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    assert YARDSTICK in {peer.name for peer in PEERS}
    assert all(peer.page for peer in PEERS)


JOB = Job("localhost:9092", "orders", "billing", "http://127.0.0.1:8080/ok", 60)


@pytest.mark.parametrize(("name", "why"), [("Dapr", "built with Go"), ("Redpanda Connect", "needs redpanda-connect")])
def test_a_peer_whose_tools_are_not_here_is_left_out_by_name(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(prepared([name])) == []
    err = " ".join(capsys.readouterr().err.split())
    assert f"left out: {name}" in err
    assert f"{why}, which is not on PATH" in err


def test_a_build_that_fails_leaves_its_peer_out_with_what_go_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'module is not served' >&2\nexit 1\n")
    go.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("RECONSUME_CACHE", str(tmp_path))
    with pytest.raises(SetupError, match="module is not served"):
        go_peers.binary_of(go_peers.SOURCES / "dapr")


def test_dapr_takes_from_the_topic_retries_after_the_delay_and_then_gives_up_to_a_dead_letter_topic() -> None:
    files = go_peers.dapr_files(JOB)
    specs = {name: resource["spec"] for name, resource in files.items() if isinstance(resource, dict)}
    assert specs["resiliency.yaml"]["policies"]["retries"]["again"]["duration"] == "60s"
    assert specs["resiliency.yaml"]["targets"] == {"components": {"broker": {"inbound": {"retry": "again"}}}}
    subscription = specs["subscription.yaml"]
    assert (subscription["topic"], subscription["deadLetterTopic"]) == ("orders", "billing-dlq")
    assert subscription["routes"] == {"default": "/ok"}
    assert {"name": "consumeRetryEnabled", "value": "false"} in specs["component.yaml"]["metadata"]


def test_a_peer_in_go_gets_the_files_of_its_job_in_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RECONSUME_CACHE", str(tmp_path))
    run = go_peers.started("/bin/connect", "connect", go_peers.connect_files, go_peers.connect_words)
    binary, word, file = run(JOB)
    assert (binary, word, Path(file).parent.name) == ("/bin/connect", "run", "billing")
    first, last = json.loads(Path(file).read_text())["output"]["fallback"]
    assert (first["http_client"]["retry_period"], last["kafka_franz"]["topic"]) == ("60s", "billing-dlq")
