"""A relay beside a service in Java that reads Kafka itself: what it fails comes back to it, and nothing twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.releases import USUAL, lock_of
from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.jars import fetch
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.sidecar.relay import RELAY

SOURCE = Path(__file__).with_name("RelayService.java")
RECORDS = 40
WITHIN = 120.0
"""Seconds for a Java process that compiles its source first, on a loaded machine."""


@pytest.mark.long  # test_relay.py shows it of a service in Python
def test_a_java_service_gets_back_what_it_wrote_to_a_level_and_what_it_posted(
    new_group: FreshGroup, start_sidecar: StartSidecar
) -> None:
    java = find_java()
    modules = subprocess.run([java, "--list-modules"], check=True, capture_output=True, text=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("this Java has no compiler: a JDK is needed to run a source file")
    group = create_group(new_group())
    relay = start_sidecar(group, "", overrides=RELAY)
    outs = [Out(b"order %d" % number, b"key-%d" % number, (("tenant", b"acme"),)) for number in range(RECORDS)]
    places = produce(group.bootstrap, group.main, outs)
    level = group.names.level(1_000, group.main)
    url = f"http://localhost:{relay.port}/v1/retry"
    command = [
        java,
        "-cp",
        ":".join(map(str, fetch(lock_of(USUAL)))),
        SOURCE,
        group.bootstrap,
        group.main,
        group.names.ready,
        level,
    ]
    done = subprocess.run(
        [*command, "1000", group.group, url, str(RECORDS)], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    rows = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("took\t")]
    wanted = {f"{group.main}:{place[0]}:{place[1]}": out.value for place, out in zip(places, outs, strict=True)}
    assert sorted(row[0] for row in rows) == sorted(wanted)  # each once
    for ident, times, due, timestamp, value, tenant in rows:
        assert (times, value.encode(), tenant) == ("1", wanted[ident], "acme")
        assert int(timestamp) >= int(due)
