"""`reconsume dev up`: the parts of the demo with a dashboard, left running for a user who wants to try them out."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sidecar.dev.demo.environment import START_SECONDS, Additions, Environment, open_environment
from sidecar.dev.demo.modes import Mode
from sidecar.dev.demo.orders import CASE_HEADER, TOPIC, Case
from sidecar.dev.demo.plan import make_plan
from sidecar.dev.demo.shop.web import HOST, free_port
from sidecar.dev.demo.traffic import Traffic
from sidecar.errors import SetupError
from sidecar.java.spark_job import prepare

LADDER = "10s,30s,1m"
"""Long enough that a user sees records wait on the dashboard, short enough that their end comes while they look."""
KAFKA_PORT, API_PORT, DASHBOARD_PORT = 9092, 8471, 8473
LOOK_SECONDS = 0.2
"""Seconds between two checks that every process still runs."""
NO_SPARK = "without the view: it is a Spark job, and PySpark is not installed: pip install 'reconsume[spark]'"
VALUE = '{"sku": "A-17"}'


class Links(NamedTuple):
    """The addresses of what runs. `token` signs in to the dashboard, `file` is the sidecar's configuration.

    `is_own`: whether the service is the user's own, and not the sample service. `has_view`: whether Spark keeps the
    view, without which the dashboard's first page is empty. `log`: the file with the sidecar's log.
    """

    dashboard: str
    api: str
    brokers: str
    file: Path
    token: str
    topic: str = TOPIC
    is_own: bool = False
    has_view: bool = False
    log: Path = Path("sidecar.log")

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the address of each part."""
        yield "dashboard", f"{self.dashboard}/{'' if self.has_view else 'instances'}"
        yield "api", f"{self.api}/status"
        yield "metrics", f"{self.api}/metrics"
        yield "brokers", self.brokers
        yield "configuration", str(self.file)
        yield "log", str(self.log)

    def producing(self, case: str) -> tuple[str, ...]:
        """Return a command that produces one record; its last word is the value.

        `case` selects the answer of the sample service.
        """
        header = () if self.is_own else ("--header", f"{CASE_HEADER}={case}")
        return "reconsume", "dev", "produce", "--brokers", self.brokers, *header, self.topic, VALUE

    @property
    def cases(self) -> tuple[str, ...]:
        """The values of the header that selects the service's answer."""
        return tuple(Case)


class Playground:
    """Everything at work; `open_playground` creates it."""

    def __init__(self, stage: Environment, links: Links, traffic: Traffic) -> None:
        self.links, self._stage, self._traffic = links, stage, traffic

    def run(self) -> NoReturn:
        """Produce the sample records, then wait for Ctrl-C or SIGTERM, which raise KeyboardInterrupt.

        Raises SetupError if a process ends by itself, BrokerError if a record cannot be produced.
        """
        while True:
            self._stage.check()
            self._traffic.step()
            time.sleep(LOOK_SECONDS)


class OwnService(NamedTuple):
    """A user's own service: its configuration, and the file that it was read from."""

    tree: Mapping[str, Any]
    file: Path

    @property
    def log(self) -> Path:
        """Return the file for the sidecar's log: beside the configuration, where it stays when all else is gone."""
        return self.file.resolve().with_suffix(".dev-up.log")


@contextmanager
def open_playground(
    orders: int, own: OwnService | None, *, view: bool, say: Callable[[str], None]
) -> Iterator[Playground]:
    """Start everything, and end it afterwards.

    `orders`: how many sample records `run` produces. `own`: a user's own service, which gets no sample records. Raises
    SetupError or BrokerError if something cannot be started.
    """
    if view and find_spec("pyspark") is None:
        say(NO_SPARK)
        view = False
    jars = prepare() if view else []
    plan = make_plan(Mode.PUSH, LADDER, orders)
    token = secrets.token_urlsafe()
    ports = usual_or_free(API_PORT), usual_or_free(DASHBOARD_PORT)
    additions = Additions(
        jars,
        usual_or_free(KAFKA_PORT),
        lambda home: sections(home, ports, token, view=view),
        None if own is None else own.tree,
        None if own is None else new_log(own.log),
    )
    with open_environment(plan, (), None, additions, say) as stage:
        for port in ports:
            await_listener(port, stage)
        api, dashboard = (f"http://{HOST}:{port}" for port in ports)
        topic = stage.settings.topic_names[0]
        log = stage.sidecar.log
        links = Links(dashboard, api, stage.bootstrap, stage.file, token, topic, own is not None, view, log)
        samples = plan.make_orders() if own is None else ()
        yield Playground(stage, links, Traffic(stage.bootstrap, samples, plan.produce_seconds))


def new_log(file: Path) -> Path:
    """Make the log empty, for its owner alone, and return it. Raises SetupError if it cannot be written."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
    except OSError as error:
        raise SetupError(f"{file}: the sidecar's log cannot be written: {error.strerror}") from error
    return file


def sections(home: Path, ports: tuple[int, int], token: str, *, view: bool) -> Mapping[str, Any]:
    """Return the sections of the sidecar's configuration that the demo has not: known ports and a dashboard."""
    file = home / "token"
    file.write_text(token, "utf-8")
    file.chmod(0o600)
    api, dashboard = ports
    listen = {"enabled": True, "listen": f"{HOST}:{dashboard}"}
    return {
        "api": {"listen": f"{HOST}:{api}", "probe_listen": None},
        "ui": {**listen, "token_file": str(file), "audit_file": str(home / "audit.jsonl")},
        "view": {"enabled": view},
    }


def usual_or_free(port: int) -> int:
    """Return the port if no program listens on it, else a free one."""
    try:
        with socket.create_server((HOST, port)):
            return port
    except OSError:
        return free_port()


def await_listener(port: int, stage: Environment) -> None:
    """Wait until a part of the sidecar listens. Raises SetupError if it does not, or if a process has ended."""
    until = time.monotonic() + START_SECONDS
    while True:
        stage.check()
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        if time.monotonic() > until:
            raise SetupError(f"no part of the sidecar listens on port {port} within {START_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
