"""`reconsume dev up` as a newcomer runs it: its links answer, its hint produces a record, and SIGTERM ends it all.

All in one file, which is one worker's: each takes the usual ports.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest

from tests.flow.operations.dev_up import (
    SECONDS,
    answered,
    failed_deliveries,
    hint,
    links_of,
    page,
    service,
    told,
    up,
    usual_ports,
)
from tests.flow.operations.readme import examples
from tests.flow.operations.test_demo import processes_of
from tests.support.deadline import until
from tests.support.processes import lives
from tests.support.service.service import free_port

PARTS = {"dashboard", "api", "metrics", "brokers", "configuration", "log"}
QUICK = ("--set", "retry.ladder=[1s]", "--set", "retry.max_reconsume_times=1")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Runs of the tests beside each other take turns."""
    with usual_ports():
        yield


@pytest.mark.long  # as the README's way in every run
def test_everything_runs_until_sigterm(tmp_path: Path) -> None:
    with up(tmp_path, "--orders", "1") as process:
        links = until(lambda: links_of(tmp_path, process), SECONDS, "everything runs")
        assert set(links) == PARTS
        assert json.loads(page(links["api"]))["group"] == "billing"
        assert "<html" in page(links["dashboard"])
        assert failed_deliveries(links["metrics"]) == 0
        assert len(" ".join(hint(tmp_path))) < 200, "a command that a user can read"
        told(*hint(tmp_path), folder=tmp_path)
        until(lambda: failed_deliveries(links["metrics"]), SECONDS, "the service has failed the flaky record once")

        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3, "Kafka, the service and the sidecar"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert [child for child in family if lives(child)] == []
    assert not processes_of(tmp_path)
    assert list((tmp_path / "temp").iterdir()) == []
    assert (tmp_path / "talk").read_text("utf-8").endswith("stopping\n")


@pytest.mark.long
def test_with_the_view_a_record_that_waits_is_shown_for_the_whole_group(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with up(tmp_path, "--orders", "1", "--view") as process:
        links = until(lambda: links_of(tmp_path, process), 2 * SECONDS, "everything runs, Spark too")
        told(*hint(tmp_path), folder=tmp_path)
        messages = links["api"].replace("/status", "/v1/view/messages")

        def rows() -> list[dict[str, str]]:
            with suppress(HTTPError):  # 503 until the sidecar has read the view
                return list(json.loads(page(messages))["messages"])
            return []

        assert {row["topic"] for row in until(rows, SECONDS, "the view has the flaky record")} == {"orders"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert not processes_of(tmp_path)


def test_the_readmes_way_leads_from_init_to_a_redrive(tmp_path: Path) -> None:
    """A service of one's own is killed and comes back; what it refuses dies, and is redriven when it is mended."""
    port = free_port()
    code = examples()["push"].code.replace("8080", str(port))
    answers = ("--group", "first", "--topics", "invoices,orders", "--bootstrap-servers", "localhost:9092")
    told("init", *answers, "--mode", "push", "--url", f"http://127.0.0.1:{port}/events", folder=tmp_path)
    with up(tmp_path, "-c", str(tmp_path / "reconsume.yaml"), *QUICK) as process:
        links = until(lambda: links_of(tmp_path, process), SECONDS, "everything runs")
        assert set(links) == PARTS
        assert "<html" in page(links["dashboard"])
        file = links["configuration"]
        produce = hint(tmp_path)[:-1]

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(page(links["api"]))
            return found

        def dead() -> list[dict[str, str]]:
            lines = told("dlq", "list", "-c", file, "-o", "jsonl", folder=tmp_path).splitlines()
            return [json.loads(line) for line in lines]

        with service(code, tmp_path):
            told(*produce, "{}", folder=tmp_path)
            until(lambda: answered(tmp_path, 200) == 1, SECONDS, "the service has the record")
            until(lambda: status()["in_flight"] == 0, SECONDS, "its response has come: killed before, it gets it again")
        told(*produce, '{"while": "down"}', folder=tmp_path)
        until(lambda: status()["pace"] == "outage", SECONDS, "the killed service is an outage")
        with service(code, tmp_path):
            until(lambda: answered(tmp_path, 200) == 2, SECONDS, "the record has waited for the service")
            told(*produce, "no json", folder=tmp_path)
            (letter,) = until(dead, SECONDS, "the refused record is a dead letter")
        with service(code.replace('b"{"', 'b"no"'), tmp_path):
            told("dlq", "redrive", "--id", letter["id"], "--yes", "-c", file, folder=tmp_path)
            until(lambda: answered(tmp_path, 200) == 3, SECONDS, "the mended service has the redriven record")
        assert Path(links["log"]) == tmp_path / "reconsume.dev-up.log", "beside the configuration"
        assert f"{letter['id']} is a dead letter after 1 retry: http-500" in Path(links["log"]).read_text("utf-8")
        assert answered(tmp_path, 500) == 2, "one delivery and one retry of the refused record; the outage cost none"

        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert not processes_of(tmp_path)
    assert list((tmp_path / "temp").iterdir()) == []
