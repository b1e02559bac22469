"""What a request that fails leaves of those who made it: nothing, whatever was being handled meanwhile.

No broker is needed: nobody listens at the address, and each request fails in the client itself, as in an outage.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.kafka.clients import unchanging
from reconsume.sidecar.kafka.committer import committer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.sidecar.kafka.consumer import start_offsets
from reconsume.sidecar.kafka.consumer.start_offsets import committed
from reconsume.topics.partition import Partition
from tests.unit.kafka.test_committer import INVALID, Refusing, settled

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
WITHIN_S = 0.05
QUEUE = Partition("queue", 0)


class Held:
    """What the caller of a request has at hand, as a client with its threads."""


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer(NOBODY)
    yield made
    made.close()


def left_of(request: Callable[[], object]) -> Held | None:
    """Make a request that fails; what it has kept of the caller."""

    def call() -> weakref.ref[Held]:
        held = Held()
        request()
        return weakref.ref(held)

    return call()()


def test_the_client_keeps_the_error_that_is_handled_while_a_request_fails(consumer: Consumer) -> None:
    """The fault of the library that the rule in kafka/errors.py is about. Once it is gone, so may the rule be."""

    def ask() -> None:
        consumer.committed([TopicPartition(*QUEUE)], timeout=WITHIN_S)

    def ask_again_in_the_handler() -> None:
        try:
            ask()
        except KafkaException:
            with pytest.raises(KafkaException):
                ask()

    def ask_again_after_it() -> None:
        for _ in range(2):
            with pytest.raises(KafkaException):
                ask()

    assert left_of(ask_again_in_the_handler) is not None
    assert left_of(ask_again_after_it) is None


@pytest.mark.parametrize("patient", [True, False])
def test_offsets_that_do_not_come_leave_nothing_of_the_call(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """A call of `POST /v1/settle` left its clients, one for each time that no coordinator answered."""
    for name in ("COMMITTED_WITHIN", "ONE_WITHIN"):
        monkeypatch.setattr(start_offsets, name, WITHIN_S)
    assert left_of(lambda: committed(consumer, [QUEUE, Partition("queue", 1)], patient=patient)) is None


class Failing(Refusing):
    """Its transactions end so, with a client at hand; and what is asked then fails."""

    def __init__(self, consumer: Consumer, ended: Callable[[], Exception]) -> None:
        super().__init__(frozenset())
        self.held: list[weakref.ref[Held]] = []
        self.asked = 0
        self.credentials = unchanging()
        self._consumer, self._ended = consumer, ended

    def answers(self) -> bool:
        self.asked += 1
        with pytest.raises(KafkaException):
            self._consumer.list_topics(timeout=WITHIN_S)
        return True

    def warn(self, event: str, text: str, *args: object, about: object = ()) -> None:
        if event == "progress-unanswered":
            self.asked += 1
            self.stop()

    def commit(
        self, entries: object, offsets: object, metadata: object, partitions: Mapping[str, int], notes: object = ()
    ) -> None:
        held = Held()
        self.held.append(weakref.ref(held))
        raise self._ended()


ENDS = {
    "aborted": lambda: Aborted(INVALID, (), producer_unusable=False),
    "in doubt": lambda: OutcomeUnknown("did not come back"),
}


@pytest.mark.parametrize("ended", ENDS.values(), ids=ENDS)
def test_a_transaction_whose_end_is_asked_about_in_vain_leaves_nothing(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, ended: Callable[[], Exception]
) -> None:
    """Neither its batch nor its producer, of which each outage kept some."""
    monkeypatch.setattr(committer, "ASK_LIMIT", WITHIN_S)
    supply = Failing(consumer, ended)
    settled(supply, 1)
    assert supply.asked
    assert [one() for one in supply.held] == [None] * len(supply.held) != []


PRODUCT = Path(start_offsets.__file__).parents[2]
ASKED = frozenset(
    [
        "committed",
        "offsets_for_times",
        "get_watermark_offsets",
        "list_topics",
        "init_transactions",
        "begin_transaction",
        "commit_transaction",
        "abort_transaction",
        "send_offsets_to_transaction",
        "produce",
        "flush",
        "consume",
        "seek",
        "position",
        "assign",
        "incremental_assign",
        "incremental_unassign",
        "subscribe",
        "pause",
        "resume",
        "commit",
        "store_offsets",
        "result",
    ]
)
"""The methods of the clients that make a request, or fail as one does. `poll` fails with nothing of its own."""


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The functions and methods that are called or handed over below some nodes."""
    every = [one for node in nodes for one in ast.walk(node)]
    called = {one.func.id for one in every if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
    return called | {one.attr for one in every if isinstance(one, ast.Attribute)}


def handlers_that_ask(source: str) -> list[int]:
    """The lines of a module's handlers in which a request is made, or a function of the module that makes one."""
    tree = ast.parse(source)
    functions = {one.name: names_in(one.body) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    asking, known = set(ASKED), set[str]()
    while asking != known:
        known = set(asking)
        asking |= {name for name, within in functions.items() if within & known}
    handlers = (one for one in ast.walk(tree) if isinstance(one, ast.ExceptHandler))
    return [one.lineno for one in handlers if names_in(one.body) & asking]


SAMPLE = """
def later(client):
    client.produce("a")

def now(client):
    try:
        client.poll(0)
    except BufferError:
        later(client)
"""


def test_no_handler_of_the_product_makes_a_request() -> None:
    """Nor a function of its module that does: handlers note what they need, and the request follows them."""
    assert handlers_that_ask(SAMPLE) == [8]
    sources = {file.relative_to(PRODUCT).as_posix(): file.read_text("utf-8") for file in PRODUCT.rglob("*.py")}
    clients = {name: source for name, source in sources.items() if "confluent_kafka" in source}
    assert len(clients) > 40
    assert {name: lines for name, source in clients.items() if (lines := handlers_that_ask(source))} == {}
