"""One real Kafka for the whole run, and fresh names: tests share a broker but never a topic or a group."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

import reconsume  # noqa: F401 - before what it gives names to, whose own names warn
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.dev.kafka.releases import lock_of
from tests.support.canary import betraying, betrays
from tests.support.compiled import compile_once
from tests.support.drawn import Drawn
from tests.support.kafka.broker import PROTOCOL, RELEASE, Broker, broker, embedded, release_of
from tests.support.kafka.certificates import Authority
from tests.support.kafka.guarded import GuardedKafka, guarded_kafka
from tests.support.kafka.topic_io import create_topic
from tests.support.order import Shared, longest_first
from tests.support.rings import EXAMPLES, may_skip
from tests.support.sidecar.scene import Proxied, proxied_kafka
from tests.support.sidecar.service_files import ServiceFiles
from tests.support.spent import Spent, show

MakeTopic = Callable[..., str]

gc.disable()  # until all tests are collected: little of what that makes is garbage

# For every Spark that a test starts: what the second compiler and G1 cost is not earned back within a minute.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A run in the background, `make test &`, finds SIGINT ignored, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Before there are workers of a whole run."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        compile_once()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Shared:
    """How `--numprocesses` shares the tests."""
    return Shared(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    longest_first(items)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, and look only at what the tests make: not at all modules and tests each time, nor
    once now, which would take each worker half a second and free little."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test in whose output the secret of the secured tests shows, whatever else it proves; and on CI, where all
    programs are there, one that is skipped."""
    report = yield
    if report.skipped and "TESTS_SKIP_NOTHING" in os.environ and not may_skip(str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped where nothing may be: {report.longrepr}"
    shown = [name for name, text in report.sections if betrays(text)]
    if shown:
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: the secret of the tests shows in {', '.join(shown)}"
    return report


@pytest.fixture(scope="session", autouse=True)
def no_secret_in_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No log or other file that the run has left holds the secret of the secured tests."""
    yield
    assert list(betraying(tmp_path_factory.getbasetemp().rglob("*"))) == []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        default="embedded",
        metavar="KIND",
        help="the Kafka to test against: embedded, or a release of it such as 3.9 (needs Java 17), testcontainers "
        "(needs Docker), or host:port",
    )
    parser.addoption(
        "--group-protocol",
        default="classic",
        choices=("classic", "consumer"),
        help="Kafka's group protocol of the sidecars under test; consumer (KIP-848) needs Kafka 4.0",
    )
    parser.addoption(
        "--draw", metavar="SEED", help="also a few of the long tests, marked `drawn`: other ones by each seed"
    )
    parser.addoption("--cpu", action="store_true", help="show what each file of tests costs, in seconds of CPU")


def pytest_configure(config: pytest.Config) -> None:
    """Have the options reach what tests start by themselves; an unknown release is wrong usage."""
    release = release_of(config.getoption("--kafka"))
    if release is not None:
        lock_of(release)
        os.environ[RELEASE] = release
    os.environ[PROTOCOL] = config.getoption("--group-protocol")
    if config.getoption("--cpu"):
        config.pluginmanager.register(Spent())
    if seed := config.getoption("--draw"):
        config.pluginmanager.register(Drawn(seed))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where the CPU went, if that was asked."""
    if config.getoption("--cpu"):
        show(terminalreporter)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The shared Kafka, `.bootstrap`; tests that stop a broker start an `EmbeddedKafka` or take `three_nodes`."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with broker(request.config.getoption("--kafka"), folder) as shared:
        yield shared


@pytest.fixture(scope="session")
def proxied() -> Iterator[Proxied]:
    """One node behind a proxy, for the files in `support/order.py` that one worker runs; take `cleared` with it."""
    with proxied_kafka() as shared:
        yield shared


@pytest.fixture
def cleared(proxied: Proxied) -> Iterator[Proxied]:
    """The node behind a proxy, whose rules are cleared after the test. What a rule's action raised fails it."""
    yield proxied
    proxied.proxy.clear()
    assert proxied.proxy.problems == []


@pytest.fixture(scope="session")
def guarded() -> Iterator[GuardedKafka]:
    """A broker that checks rights, for the files in `support/order.py` that one worker runs: each makes its groups."""
    with guarded_kafka() as shared:
        yield shared


@pytest.fixture(scope="module")
def three_node_cluster() -> Iterator[EmbeddedKafka]:
    """Three nodes, which take a tenth of a core while nobody uses them; take `three_nodes`, which heals them."""
    with embedded(3) as cluster:
        yield cluster


@pytest.fixture
def three_nodes(three_node_cluster: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """Three nodes that a test may kill, stop or pause: whatever is down afterwards is brought back."""
    yield three_node_cluster
    three_node_cluster.heal()


@pytest.fixture
def make_topic(kafka: Broker) -> MakeTopic:
    """`make_topic(partitions=1, **config) -> name`: a new topic; `cleanup_policy="compact"` sets `cleanup.policy`."""

    def make(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        create_topic(kafka.bootstrap, name, partitions, {k.replace("_", "."): str(v) for k, v in config.items()})
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A new topic of one partition."""
    return make_topic()


@pytest.fixture
def group() -> str:
    """A consumer group name that nobody has used."""
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that is trusted where a test trusts one."""
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that is not, or not yet."""
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def service_files(tmp_path: Path, ours: Authority) -> ServiceFiles:
    """What a service is called with, in files: certificates of `ours`, a token, a signing secret."""
    return ServiceFiles(tmp_path / "mounted", ours)
