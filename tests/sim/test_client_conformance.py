"""The model of the client against the real one on a real broker: the same commands, the same to be seen.

`RECONSUME_CONFORMANCE_EXAMPLES=500 pytest tests/sim/test_client_conformance.py` tries more sequences.
"""

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.sim.twin import Twin, twin
from tests.sim.twin_broker import Broker
from tests.support.kafka.broker import Broker as Kafka

EXAMPLES = int(os.environ.get("RECONSUME_CONFORMANCE_EXAMPLES", "12"))
PARTITIONS = 2
FILLED = 12
"""Records in each partition at the beginning."""

Command = tuple[object, ...]
NUMBERS = st.integers(0, PARTITIONS - 1)
OFFSETS = st.integers(0, FILLED + 6)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.tuples(st.just("assign"), NUMBERS, OFFSETS | st.sampled_from([OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED])),
    st.tuples(st.sampled_from(["unassign", "pause", "resume", "ask"]), NUMBERS),
    st.tuples(st.just("seek"), NUMBERS, OFFSETS),
    st.tuples(st.just("consume"), st.integers(1, 8)),
    st.tuples(st.just("append"), NUMBERS, st.integers(1, 4)),
    st.tuples(st.just("transact"), NUMBERS, st.integers(1, 3), st.booleans()),
    st.tuples(st.sampled_from(["cut", "commit"]), NUMBERS, OFFSETS),
    st.tuples(st.just("settle")),
)


ONCE_DIFFERENT: dict[str, list[Command]] = {
    "a pause outlives the unassignment": [
        ("pause", 0),
        ("unassign", 0),
        ("assign", 0, 4),
        ("settle",),
        ("resume", 0),
        ("consume", 2),
    ],
    "a pause outlives a lost offset": [
        ("pause", 0),
        ("cut", 0, 9),
        ("seek", 0, 2),
        ("resume", 0),
        ("pause", 0),
        ("unassign", 0),
        ("assign", 0, 9),
        ("settle",),
        ("resume", 0),
    ],
    "a partition that is not ours can be paused beforehand": [
        ("pause", 1),
        ("assign", 1, 0),
        ("settle",),
        ("resume", 1),
    ],
    "a seek lands where it should while it is paused": [("pause", 0), ("seek", 0, 7), ("settle",), ("resume", 0)],
    "a pause after a seek takes nothing back": [("seek", 0, 7), ("pause", 0), ("resume", 0)],
    "the end is told anew after each pause": [("settle",), ("pause", 0), ("resume", 0), ("settle",)],
    "no seek goes where the offset was out of range": [
        ("seek", 0, 90),
        ("settle",),
        ("seek", 0, 1),
        ("pause", 0),
        ("resume", 0),
    ],
    "the word of a lost offset outlives its pause and its unassignment": [
        ("stray", 0, 90),
        ("pause", 0),
        ("unassign", 0),
        ("assign", 0, 3),
        ("settle",),
        ("resume", 0),
    ],
    "a paused partition whose offset is lost takes no seek before that is told": [
        ("stray", 0, 90),
        ("pause", 0),
        ("seek", 0, 2),
        ("settle",),
        ("seek", 0, 2),
        ("resume", 0),
    ],
    "a lost offset is told once, and only a new assignment goes on": [
        ("seek", 0, 90),
        ("resume", 0),
        ("append", 0, 3),
        ("settle",),
        ("unassign", 0),
        ("assign", 0, 13),
    ],
    "without a committed offset there is nothing to start at": [
        ("assign", 1, OFFSET_STORED),
        ("settle",),
        ("seek", 1, 0),
    ],
    "one offset that is held back stops all that were asked for with it": [
        ("commit", 1, 4),
        ("unassign", 0),
        ("hold", 0, 9),
        ("assign_together", 0, 1),
        ("ask_in_vain", 0),
        ("settle",),
        ("let_go", 0),
    ],
    "one offset that is held back stops none that was asked for alone": [
        ("commit", 1, 4),
        ("unassign", 0),
        ("hold", 0, 9),
        ("assign_together", 0),
        ("assign_together", 1),
        ("settle",),
        ("let_go", 0),
    ],
    "a marker counts as consumed": [("transact", 0, 1, True), ("settle",), ("seek", 0, 13), ("settle",)],
    "an aborted transaction leaves a gap": [("transact", 0, 3, False), ("append", 0, 1), ("seek", 0, 13)],
}


@pytest.fixture(scope="module")
def broker(kafka: Kafka) -> Iterator[Broker]:
    made = Broker(kafka.bootstrap)
    yield made
    made.close()


def begin(pair: Twin) -> None:
    """Fill the partitions, and have the first one under way, as it always is."""
    for number in range(PARTITIONS):
        pair.append(number, FILLED)
    pair.assign(0, 0)
    pair.consume(3)


def obey(pair: Twin, commands: list[Command]) -> None:
    for name, *arguments in commands:
        getattr(pair, str(name))(*arguments)
    pair.settle()
    for number in range(PARTITIONS):
        pair.ask(number)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate] if EXAMPLES < 100 else tuple(Phase),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(commands=st.lists(COMMANDS, min_size=4, max_size=14))
def test_client_and_model_show_the_same_after_any_commands(broker: Broker, commands: list[Command]) -> None:
    with twin(broker, PARTITIONS) as pair:
        begin(pair)
        obey(pair, commands)


@pytest.mark.parametrize("name", ONCE_DIFFERENT)
def test_what_once_differed_is_the_same_now(broker: Broker, name: str) -> None:
    with twin(broker, PARTITIONS) as pair:
        begin(pair)
        obey(pair, ONCE_DIFFERENT[name])
