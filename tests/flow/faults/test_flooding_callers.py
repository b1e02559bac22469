"""Each class of callers floods a sidecar by itself: probes, verdicts and an operator who has signed in are answered."""

from __future__ import annotations

import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.flow.conftest import FreshGroup
from tests.flow.faults.callers import CALLERS, OPERATOR_TOKEN, SERVICE_TOKEN
from tests.flow.faults.test_under_pressure import kib
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group
from tests.support.kafka.topic_io import produce
from tests.support.rings import inner
from tests.support.service.service import free_port
from tests.support.sidecar.process import REPOSITORY, SidecarProcess

SECONDS = 15
LATEST = 10.0
"""Seconds within which everybody is answered who is not the flood."""
MEMORY = 256
"""MiB: the limit of the container by the formula of docs/kubernetes.md."""
BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}", "Content-Type": "application/json"}


def answer(
    port: int, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, str]:
    """One call: its status, its body and the cookie that it sets."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2 * LATEST)) as connection:
        connection.request(method, path, body, headers or {})
        got = connection.getresponse()
        return got.status, got.read(), (got.getheader("set-cookie") or "").partition(";")[0]


class Operator:
    """Somebody who has signed in to the dashboard before the flood, and holds and releases a key."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._headers = {
            "Origin": f"http://127.0.0.1:{port}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        form = urlencode({"who": "ann", "token": OPERATOR_TOKEN})
        status, _, cookie = answer(port, "POST", "/sign-in", form, self._headers)
        assert status == 303
        self._headers["Cookie"] = cookie
        found = re.search(rb'name="csrf" value="([^"]+)"', self._page("/activity"))
        assert found is not None
        self._csrf = found[1].decode()

    def _page(self, path: str) -> bytes:
        status, page, _ = answer(self._port, "GET", path, None, self._headers)
        assert status == 200, (path, status, page[:300])
        return page

    def acts(self) -> None:
        """Look at the first page, and hold a key that no record has."""
        self._page("/")
        form = urlencode({"csrf": self._csrf, "key": "nobody", "for": "1s", "why": "a drill"})
        status, page, _ = answer(self._port, "POST", "/holds/begin", form, self._headers)
        assert status == 303, (status, page[:300])


class Repeated(threading.Thread):
    """Something that is done again and again, until it is ended or fails: how long each time took."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.took: list[float] = []
        self.failure: Exception | None = None
        self._action, self._ended = action, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            begin = time.monotonic()
            try:
                self._action()
            except Exception as failure:  # noqa: BLE001 - the test raises it
                self.failure = failure
                return
            self.took.append(time.monotonic() - begin)

    def end(self) -> None:
        """Do it no more. Raises what it failed with."""
        self._ended.set()
        self.join(2 * LATEST)
        assert not self.is_alive(), f"{self.name} waits for an answer"
        if self.failure is not None:
            raise AssertionError(f"{self.name} failed after {len(self.took)} times") from self.failure

    def __str__(self) -> str:
        median, most = statistics.median(self.took), max(self.took)
        return f"{self.name}: {len(self.took)} times, median {median:.2f} s, at most {most:.2f} s"


def verdicts(port: int) -> None:
    """Receive a record and ack it."""
    status, body, _ = answer(port, "POST", "/v1/receive", '{"max": 1, "wait": "1s"}', BEARER)
    assert status == 200, (status, body[:300])
    for record in json.loads(body)["records"]:
        status, body, _ = answer(port, "POST", "/v1/ack", json.dumps({"handles": [record["handle"]]}), BEARER)
        assert status == 200, (status, body[:300])


def probes(port: int) -> None:
    """Ask as the kubelet does."""
    for path in ("/livez", "/readyz"):
        status, body, _ = answer(port, "GET", path)
        assert status == 200, (path, status, body[:300])


def token_files(folder: Path) -> tuple[str, str]:
    """The files of the service's token and of the operator's."""
    service, operator = folder / "service-token", folder / "operator-token"
    service.write_text(f"billing: {SERVICE_TOKEN}\n")
    operator.write_text(f"ann: {OPERATOR_TOKEN}\n")
    return str(service), str(operator)


def written_topics(group: GroupTopics) -> list[str]:
    """The main topic, and those of the group that a producer with too many rights reaches."""
    names = group.names
    return [group.main, names.policy, names.events, group.dlq, names.ready, names.level(group.delays[0], group.main)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", inner("nobody", [*CALLERS, "producer"]))
def test_while_one_class_of_callers_floods_it_all_others_are_answered_and_memory_is_bounded(
    new_group: FreshGroup, tmp_path: Path, who: str
) -> None:
    group = create_group(new_group(), partitions=2, also=UNUSED)
    probe_port, ui = free_port(), free_port()
    service, operator = token_files(tmp_path)
    overrides = {
        "deliver": {"mode": "pull"},
        "api": {"probe_listen": f"127.0.0.1:{probe_port}", "token_file": service},
        "operators": {"token_file": operator, "audit_file": str(tmp_path / "audit.jsonl")},
        "ui": {"enabled": True, "listen": f"127.0.0.1:{ui}"},
    }
    with SidecarProcess(group, "", tmp_path, overrides=overrides, fresh=True) as sidecar:
        sidecar.wait_log("the dashboard listens")
        produce(group.bootstrap, group.main, [b"%d" % number for number in range(500)])
        ann = Operator(ui)
        others = [
            Repeated("probes", lambda: probes(probe_port)),
            Repeated("verdicts", lambda: verdicts(sidecar.port)),
            Repeated("the operator", ann.acts),
        ]
        for one in others:
            one.start()
        place = (sidecar.port, ui, group.bootstrap, ",".join(written_topics(group)))
        words = [sys.executable, "-m", "tests.flow.faults.callers", who, SECONDS, *place]
        flood = subprocess.run(
            list(map(str, words)), cwd=REPOSITORY, capture_output=True, text=True, timeout=6 * SECONDS, check=True
        )
        for one in others:
            one.end()
        peak = kib(sidecar.pid, "VmHWM") / 1024
        seen = f"{flood.stdout.strip()}; {'; '.join(map(str, others))}; {peak:.0f} MiB"
        assert max(max(one.took) for one in others) <= LATEST, seen
        assert peak <= MEMORY, seen
        assert sidecar.stop().code == 0, seen
        print(f"{who}: {seen}")  # noqa: T201 - the figures; `pytest -s` shows them
