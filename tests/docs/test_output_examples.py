"""The services of `docs/service.md` that write invoices: each runs as it stands, and they come out on a broker."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.test_service_examples import PAGE
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import create_topic, dump, produce
from tests.support.rings import inner
from tests.support.service.real_services import program, until_it_listens
from tests.support.sidecar.process import SidecarProcess

SERVICES = dict(re.findall(r"<!-- output: (\w+) -->\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = {"python": ("service.py", lambda: sys.executable), "js": ("service.js", lambda: program("node"))}


@pytest.mark.parametrize("language", inner("python", COMMANDS))
def test_orders_go_in_and_each_invoice_comes_out_once(kafka: Broker, tmp_path: Path, language: str) -> None:
    group = create_group(fresh_group(kafka.bootstrap))
    out = group.names.dlq(group.main).replace("-DLQ", "-invoices")
    create_topic(kafka.bootstrap, out, 3)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    code = SERVICES[language]
    assert (code.count("8080"), code.count('"invoices"')) == (1, 1)
    name, command = COMMANDS[language]
    (tmp_path / name).write_text(code.replace("8080", str(port)).replace('"invoices"', f'"{out}"'), encoding="utf-8")
    with subprocess.Popen([command(), tmp_path / name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            until_it_listens(process, port)
            overrides = {"deliver": {"outputs": [f"{group.group}-*"]}}
            with SidecarProcess(group, f"http://127.0.0.1:{port}/events", tmp_path, overrides=overrides) as sidecar:
                sidecar.wait_ready()
                orders = [json.dumps({"id": f"o-{number}", "pieces": number}).encode() for number in range(30)]
                produce(kafka.bootstrap, group.main, orders)
                sidecar.until(lambda: len(dump(kafka.bootstrap, out)) >= 30, 30, "each order has its invoice")
        finally:
            process.kill()
    rows = dump(kafka.bootstrap, out)
    written = {row.key: json.loads(row.value or b"") for row in rows}
    assert len(rows) == 30
    assert written == {f"o-{n}".encode(): {"order": f"o-{n}", "cents": n * 999} for n in range(30)}
