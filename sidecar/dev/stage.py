"""Everything that the demo starts, and clears away again: Kafka, the topics, the sample service, the sidecar.

The service and the sidecar are processes of their own, as they would be in production; if we are killed, a guard ends
them and removes the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from sidecar.dev.kafka import EmbeddedKafka
from sidecar.dev.kafka_node import Guard
from sidecar.dev.ledger import LedgerReader, Opened
from sidecar.dev.orders import CASE_HEADER, TOPIC
from sidecar.dev.progress import progress_bar
from sidecar.dev.shop import HOST
from sidecar.edges.admin import Admin, CreateState, source_of
from sidecar.errors import BrokerError, SetupError
from sidecar.settings import Settings, load
from topics.names import Kind
from topics.specs import TopicSpec, group_specs

GROUP = "billing"
PARTITIONS = 3
DELIVERY_TIMEOUT = "2s"
START_SECONDS = 20.0
STOP_SECONDS = 30.0
"""More than the sidecar's own drain_timeout: it shall end by itself."""
TAIL_LINES = 30


class Child:
    """A process that we started; what it writes goes to a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        # Our own settings come from the generated file alone, whatever the user's shell has.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("RECONSUME_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environ,
                process_group=0,  # Ctrl-C in the terminal is ours to handle
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise SetupError with the end of its log when it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise SetupError(f"the {self.name} ended by itself with code {code}:\n{self.log_tail()}")

    def stop(self) -> int:
        """SIGTERM and wait; the exit code. Killed, and a negative code, when it does not end. Safe to call again."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:])


class Stage:
    """What runs; made by `open_stage`."""

    def __init__(self, settings: Settings, ledger: LedgerReader, shop: Child, sidecar: Child) -> None:
        self.settings, self.ledger, self.shop, self.sidecar = settings, ledger, shop, sidecar

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return self.settings.kafka["bootstrap.servers"]

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that takes part: main, levels, ready, DLQ and events."""
        names, mains = self.settings.names, self.settings.topic_names
        levels = names.levels_of(self.settings.delays, mains)
        return (*mains, *levels, names.ready, *names.dlqs_of(mains), names.events)

    def check(self) -> None:
        """Raise SetupError when a process has ended by itself."""
        self.shop.check()
        self.sidecar.check()


@contextmanager
def open_stage(
    retry: dict[str, Any], shop: Sequence[str], folder: Path | None, say: Callable[[str], None]
) -> Iterator[Stage]:
    """Start everything; `retry` is that section of the configuration, `shop` the sample service's options.

    With `folder` all data is kept there. Raises SetupError or BrokerError with what went wrong.
    """
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reconsume-demo-")))
        guard = Guard(None if folder is not None else home)
        stack.callback(guard.close)
        stack.callback(guard.watch, [])  # by then all have ended, and their numbers may belong to others
        with progress_bar() as progress:
            kafka = EmbeddedKafka.start(folder=home / "kafka" if folder is not None else None, progress=progress)
        stack.enter_context(kafka)
        say(f"Apache Kafka runs at {kafka.bootstrap}")
        ledger = stack.enter_context(LedgerReader(home / "ledger.jsonl"))
        service = Child("shop", ["sidecar.dev.shop", str(home / "ledger.jsonl"), *shop], home)
        stack.callback(service.stop)
        guard.watch([service.pid])
        url = f"http://{HOST}:{await_port(ledger, service)}/orders"
        say(f"the sample service listens at {url}")
        settings = write_settings(home / "reconsume.yaml", kafka.bootstrap, url, retry)
        say(f"{create_topics(settings)} topics are made for group {GROUP}")
        sidecar = Child("sidecar", ["sidecar", "run", "-c", str(home / "reconsume.yaml")], home)
        stack.callback(sidecar.stop)
        guard.watch([service.pid, sidecar.pid])
        yield Stage(settings, ledger, service, sidecar)


def await_port(ledger: LedgerReader, service: Child) -> int:
    """The port that the service says it listens on."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        for line in ledger.read():
            if isinstance(line, Opened):
                return line.port
        service.check()
        time.sleep(0.02)
    raise SetupError(f"the sample service did not start within {START_SECONDS:.0f} s:\n{service.log_tail()}")


def write_settings(file: Path, bootstrap: str, url: str, retry: dict[str, Any]) -> Settings:
    """Write the sidecar's configuration, and read it as the sidecar will."""
    tree = {
        "group": GROUP,
        "topics": [TOPIC],
        "kafka": {"bootstrap.servers": bootstrap},
        "deliver": {"url": url, "timeout": DELIVERY_TIMEOUT, "forward_headers": [CASE_HEADER]},
        "retry": retry,
        "api": {"listen": f"{HOST}:0", "probe_listen": None},
        "log": {"format": "text"},
    }
    file.write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")
    return load(file, (), {})


def create_topics(settings: Settings) -> int:
    """Create the main topic, and the group's own as `topics apply` does; how many there are. Raises BrokerError."""
    admin = Admin(settings.kafka)
    create(admin, [TopicSpec(TOPIC, Kind.MAIN, PARTITIONS, 1, {})])
    specs = group_specs(settings.names, [source_of(admin.find([TOPIC])[TOPIC])], settings.delays)
    create(admin, specs)
    return len(specs)


def create(admin: Admin, specs: Sequence[TopicSpec]) -> None:
    """Create topics and wait until the broker lists them all."""
    for result in admin.create(specs):
        if result.state is CreateState.FAILED:
            raise BrokerError(f"topic {result.name} cannot be created: {result.error}")
    until = time.monotonic() + START_SECONDS
    while len(admin.find(spec.name for spec in specs)) < len(specs):
        if time.monotonic() > until:
            raise BrokerError(f"the new topics are not listed within {START_SECONDS:.0f} s")
        time.sleep(0.05)
