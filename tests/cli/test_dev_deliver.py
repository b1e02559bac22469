"""`dev deliver`: one delivery to a service by the sidecar's own code, and what its response means."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.stub_service import Behaviour, StubService, Talk, answer
from tests.support.sidecar.cli import for_group, reconsume
from tests.support.sidecar.settings import write_good

JSON = "Content-Type: application/json"
VALUE = b'{"sku": "A-17"}'


def delivered(
    folder: Path, *words: str | os.PathLike[str], behaviour: Behaviour | None = None
) -> tuple[int, dict[str, Any], list[bytes]]:
    """The exit code, the row, and the requests that the service had."""
    (folder / "order.json").write_bytes(VALUE)
    value = () if "--value-file" in words else ("--value-file", folder / "order.json")
    with StubService([behaviour or answer(200)]) as stub:
        done = reconsume(
            *("dev", "deliver", "-c", write_good(folder), "--set", f"deliver.url={stub.url}", *value, *words)
        )
        assert done.exit_code in (0, 1), done.stderr
        return done.exit_code, json.loads(done.stdout), list(stub.requests)


def test_the_request_is_printed_as_the_service_got_it(tmp_path: Path) -> None:
    words = ("--key", "customer-7", "--header", "trace=1", "--set", "deliver.forward_headers=[trace]")
    code, row, [request] = delivered(tmp_path, *words)
    head, _, body = request.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    assert (code, row["outcome"], row["follows"]) == (0, "commit", "the record is done")
    assert (line, body) == (f"{row['request']} HTTP/1.1", VALUE)
    assert [f"{name}: {value}" for name, value in row["headers"].items()] == lines
    assert {"Reconsume-Key": "customer-7", "trace": "1", "Content-Type": "application/json"}.items() <= row[
        "headers"
    ].items()
    assert "Reconsume-Trial" not in row["headers"], "the handler does its work"


@pytest.mark.parametrize(
    ("behaviour", "sets", "outcome", "follows"),
    [
        (answer(500), (), "retry", "retry 1 of 16 after 10s, in billing-RETRY-10s"),
        (answer(500), ("retry.max_reconsume_times=0",), "retry", "a dead letter in billing-DLQ, as http-500"),
        (answer(200, "Reconsume-Verdict: retry; delay=5m"), (), "retry", "retry 1 of 16 after 5m, in billing-RETRY-5m"),
        (answer(200, "Reconsume-Verdict: dead-letter; reason=bad-sku"), (), "dead_letter", "as bad-sku"),
        (answer(200, "Reconsume-Verdict: postpone; delay=5s"), (), "postponed", "after 5s; no retry is used up"),
        (answer(429, "Retry-After: 3"), (), "throttled", "delivered again after 3s; no retry is used up"),
        (answer(500), ("deliver.order=key",), "retry", "retried in place after 1s"),
        (answer(200, JSON, body=b'{"verdict": "retry"}'), (), "retry", "retry 1 of 16"),
        (answer(200, JSON, body=b'{"verdict": "retry"}'), ("deliver.verdicts=header",), "commit", "the record is done"),
    ],
)
def test_what_follows_is_what_the_sidecar_would_do(
    tmp_path: Path, behaviour: Behaviour, sets: tuple[str, ...], outcome: str, follows: str
) -> None:
    words = [word for one in sets for word in ("--set", one)]
    code, row, _ = delivered(tmp_path, *words, behaviour=behaviour)
    assert row["outcome"] == outcome
    assert follows in row["follows"]
    assert code == (0 if outcome == "commit" else 1)


def test_a_batch_is_sent_as_a_batch_and_its_verdict_is_read(tmp_path: Path) -> None:
    def refuse(talk: Talk) -> bool:
        [record] = json.loads(talk.request.partition(b"\r\n\r\n")[2])["records"]
        verdict = {"id": record["id"], "verdict": "dead-letter", "reason": "bad-sku"}
        return answer(200, JSON, body=json.dumps({"verdicts": [verdict]}).encode())(talk)

    words = ("--set", "deliver.batch.max_size=8", "--set", "deliver.batch.max_wait=1m")
    code, row, [request] = delivered(tmp_path, *words, behaviour=refuse)
    assert request.partition(b"\r\n\r\n")[2].startswith(b'{"group":"billing","records":[{"id":"orders:')
    assert (code, row["reason"], row["odd"]) == (1, "bad-sku", [])


def test_a_token_is_sent_and_not_printed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame-open-17")
    _, row, [request] = delivered(tmp_path, "--set", f"deliver.bearer_token_file={tmp_path / 'token'}")
    assert b"Authorization: Bearer sesame-open-17\r\n" in request
    assert row["headers"]["Authorization"] == "(hidden)"
    assert "sesame" not in json.dumps(row)


def test_a_service_that_is_not_there_fails_and_says_so(tmp_path: Path) -> None:
    code, row, requests = delivered(tmp_path, "--set", "deliver.url=http://127.0.0.1:1/")
    assert (code, row["outcome"], row["reason"], row["request"], requests) == (
        *(1, "not_sent", "connection-refused", ""),
        [],
    )


def test_a_value_comes_from_stdin_too_and_a_wrong_call_is_one_sentence(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    with StubService([answer(200)]) as stub:
        words = ("dev", "deliver", "-c", file, "--set", f"deliver.url={stub.url}")
        assert reconsume(*words, "--value-file", "-", stdin="from a pipe").exit_code == 0
        assert stub.requests[0].endswith(b"from a pipe")
        for wrong in (
            (),
            ("--value-file", "-", "--record", "orders:0:1"),
            ("--record", "orders:0:1", "--key", "k"),
            ("--value-file", tmp_path / "missing"),
            ("--value-file", "-", "--topic", "order"),
            ("--value-file", "-", "--header", "x"),
        ):
            assert reconsume(*words, *wrong, stdin="x").exit_code == 2, wrong
        assert reconsume(*words, "--value-file", "-", "--set", "deliver.mode=pull", stdin="x").exit_code == 78
        assert len(stub.requests) == 1


def test_a_real_record_is_delivered_under_its_own_id_and_one_that_is_not_there_is_named(
    kafka: Broker, tmp_path: Path
) -> None:
    group = create_group(fresh_group(kafka.bootstrap))
    produce(group.bootstrap, group.main, [Out(b"first", b"k", (), 0), Out(VALUE, b"customer-7", (), 0)])
    with StubService([answer(200)]) as stub:
        deliver = {"deliver": {"url": stub.url}}
        done = for_group(tmp_path, group, "dev", "deliver", "--record", f"{group.main}:0:1", **deliver)
        assert done.exit_code == 0, done.stderr
        head, _, body = stub.requests[0].partition(b"\r\n\r\n")
        assert body == VALUE
        assert f"Idempotency-Key: {group.group}/{group.main}:0:1/0".encode() in head
        assert b"Reconsume-Key: customer-7" in head
        trial = for_group(tmp_path, group, "doctor", "--deliver", "--record", f"{group.main}:0:1", **deliver)
        [row] = [one for one in map(json.loads, trial.stdout.splitlines()) if one["check"] == "delivery"]
        assert row["status"] == "ok", row
        [request] = [one for one in stub.requests[1:] if one.startswith(b"POST")]
        assert request.endswith(VALUE)
        assert b"Reconsume-Trial: 1\r\n" in request
        assert f"Reconsume-Id: {group.main}:2147483647:".encode() in request, "no service takes it for the record"
        for ident in (f"{group.main}:0:2", f"{group.main}:7:0", "elsewhere:0:0"):
            missing = for_group(tmp_path, group, "dev", "deliver", "--record", ident, **deliver)
            assert (missing.exit_code, missing.stdout) == (1, ""), missing.stderr
            assert len(missing.stderr.splitlines()) == 1
