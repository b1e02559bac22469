"""`reconsume dev up`: the parts of the demo with a dashboard, left running for a user who wants to try them out."""

from __future__ import annotations

import fcntl
import itertools
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from reconsume.sidecar.dev.demo.environment import START_SECONDS, Additions, Environment, open_environment
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.orders import CASE_HEADER, TOPIC, Case
from reconsume.sidecar.dev.demo.plan import make_plan
from reconsume.sidecar.dev.demo.shop.web import HOST, free_port
from reconsume.sidecar.dev.demo.traffic import Traffic
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import open_private, write_private
from reconsume.sidecar.java.spark_job import prepare
from reconsume.sidecar.ui.sign_in import query_of_link

LADDER = "10s,30s,1m"
"""Long enough that a user sees records wait on the dashboard, short enough that their end comes while they look."""
USUAL_PORTS = 9092, 8471, 8473
"""Of Kafka, the API and the dashboard."""
LOOK_SECONDS = 0.2
"""Seconds between two checks that every process still runs."""
NO_SPARK = (
    "without the view: it is a Spark job, and PySpark is not installed: pip install '.[spark]' in a clone of "
    "Reconsume's repository"
)
VALUE = '{"sku": "A-17"}'


class Links(NamedTuple):
    """The addresses of what runs.

    `token` signs in to the dashboard and makes calls of operators, `file` is the sidecar's configuration.

    `is_own`: whether the service is the user's own, and not the sample service. `log`: the file with the sidecar's log.
    `displaced`: the usual ports that other programs have, so that parts of this one have others. `key`: of the record
    that is produced, where the order is by key: one without a key waits alone.
    """

    dashboard: str
    api: str
    brokers: str
    file: Path
    token: str
    topic: str = TOPIC
    is_own: bool = False
    log: Path = Path("sidecar.log")
    displaced: tuple[int, ...] = ()
    key: str = ""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the address of each part."""
        yield "dashboard", f"{self.dashboard}/sign-in?{query_of_link(self.token, 'dev', time.time())}"
        yield "api", f"{self.api}/status"
        yield "metrics", f"{self.api}/metrics"
        yield "brokers", self.brokers
        yield "configuration", str(self.file)
        yield "log", str(self.log)

    def moved(self) -> Iterator[str]:
        """Yield a sentence for each part that has another port than the usual one."""
        addresses = (self.brokers, self.api, self.dashboard)
        for port, name, address in zip(USUAL_PORTS, ("Kafka", "the API", "the dashboard"), addresses, strict=True):
            if port in self.displaced:
                yield f"port {port} is in use by another program: {name} of this one is at {address}"
        if self.displaced:
            yield f"give each command -c {self.file}: without that it asks the other one"

    def producing(self, case: str) -> tuple[str, ...]:
        """Return a command that produces one record; its last word is the value.

        `case` selects the answer of the sample service.
        """
        header = () if self.is_own else ("--header", f"{CASE_HEADER}={case}")
        key = ("--key", self.key) if self.key else ()
        return "reconsume", "dev", "produce", "--brokers", self.brokers, *header, *key, self.topic, VALUE

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
    orders: int, own: OwnService | None, *, view: bool, speed: int, say: Callable[[str], None]
) -> Iterator[Playground]:
    """Start everything, and end it afterwards.

    `orders`: how many sample records `run` produces. `own`: a user's own service, which gets no sample records.
    `speed`: what the waits of retries are divided by. Raises SetupError or BrokerError if something cannot be started.
    """
    if view and find_spec("pyspark") is None:
        say(NO_SPARK)
        view = False
    jars = prepare() if view else []
    plan = make_plan(Mode.PUSH, LADDER, orders)
    token = secrets.token_urlsafe()
    kafka, api_port, ui_port = got = tuple(map(usual_or_free, USUAL_PORTS))
    displaced = tuple(port for port, taken in zip(USUAL_PORTS, got, strict=True) if port != taken)
    with ExitStack() as stack:
        additions = Additions(
            jars,
            kafka,
            lambda home: sections(home, (api_port, ui_port), token, view=view),
            None if own is None else own.tree,
            None if own is None else stack.enter_context(own_log(own.log)),
            speed,
        )
        stage = stack.enter_context(open_environment(plan, (), None, additions, say))
        for port in (api_port, ui_port):
            await_listener(port, stage)
        api, dashboard = (f"http://{HOST}:{port}" for port in (api_port, ui_port))
        topic, log = stage.settings.topic_names[0], stage.sidecar.log
        key = "customer-7" if stage.settings.order_by == "key" else ""
        links = Links(dashboard, api, stage.bootstrap, stage.file, token, topic, own is not None, log, displaced, key)
        samples = plan.make_orders() if own is None else ()
        yield Playground(stage, links, Traffic(stage.bootstrap, samples, plan.produce_seconds))


@contextmanager
def own_log(file: Path) -> Iterator[Path]:
    """Yield an empty log for its owner alone: `file`, or with a number while another `dev up` writes to that.

    Raises SetupError if it cannot be written.
    """
    for number in itertools.count(1):
        named = file if number == 1 else file.with_suffix(f".{number}.log")
        try:
            log = open_private(named, "r+b")
        except OSError as error:
            raise SetupError(f"{named}: the sidecar's log cannot be written: {error.strerror}") from error
        with log as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            held.truncate(0)
            yield named
            return


def sections(home: Path, ports: tuple[int, int], token: str, *, view: bool) -> Mapping[str, Any]:
    """Return the sections of the sidecar's configuration that the demo has not: known ports and a dashboard."""
    file = home / "token"
    write_private(file, token)
    api, dashboard = ports
    return {
        "api": {"listen": f"{HOST}:{api}", "probe_listen": None},
        "ui": {"enabled": True, "listen": f"{HOST}:{dashboard}"},
        "operators": {"token_file": str(file), "audit_file": str(home / "audit.jsonl")},
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
