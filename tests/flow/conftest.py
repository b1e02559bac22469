"""What flow tests start: services and sidecars that are always ended, and the evidence that they leave.

Module-scoped makers, because one run serves many claims: the record kinds are put through together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import DELAYS, GroupTopics, fresh_group
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import Script
from tests.support.service.service import Service
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import OtherGroup, SidecarProcess
from tests.support.sidecar.scene import Proxied, Scene

FreshGroup = Callable[..., GroupTopics]
StartService = Callable[[Script], Service]


class StartSidecar(Protocol):
    """Starts one sidecar of a group, and of `others`; `wait` for its lanes."""

    def __call__(
        self,
        group: GroupTopics,
        url: str,
        pod: str = "pod-0",
        overrides: Config | None = None,
        *,
        wait: bool = True,
        others: Sequence[OtherGroup] = (),
    ) -> SidecarProcess: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module's ledgers, configurations and logs lie."""
    return tmp_path_factory.mktemp("flow")


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    """Ends what a module has started, last first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger of one test, for a service that calls."""
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        yield ledger


@pytest.fixture
def scene(cleared: Proxied, tmp_path: Path) -> Iterator[Scene]:
    """A sidecar behind the proxy, with a group under load; what it starts is ended before the rules are cleared."""
    with ExitStack() as stack:
        yield Scene(cleared, tmp_path, stack)


@pytest.fixture(scope="module")
def new_group(kafka: Broker) -> FreshGroup:
    """`new_group(mains=1)`: a group and main topics of fresh names, not created yet."""

    def make(mains: int = 1, delays: tuple[int, ...] = DELAYS) -> GroupTopics:
        return fresh_group(kafka.bootstrap, mains, delays)

    return make


@pytest.fixture(scope="module")
def start_service(stack: ExitStack, folder: Path) -> StartService:
    """`start_service(script)`: a service that listens, with a ledger of its own."""

    def start(script: Script) -> Service:
        return stack.enter_context(Service(folder / f"ledger-{len(list(folder.glob('ledger-*')))}.jsonl", script))

    return start


@pytest.fixture(scope="module")
def start_sidecar(stack: ExitStack, folder: Path) -> StartSidecar:
    """`start_sidecar(group, url, pod="pod-0", overrides=None)`: a sidecar that has started."""

    def start(
        group: GroupTopics,
        url: str,
        pod: str = "pod-0",
        overrides: Config | None = None,
        *,
        wait: bool = True,
        others: Sequence[OtherGroup] = (),
    ) -> SidecarProcess:
        sidecar = SidecarProcess(group, url, folder / group.group, pod=pod, overrides=overrides, others=others)
        stack.enter_context(sidecar)
        if wait:
            sidecar.wait_ready()
        return sidecar

    return start
