"""A query's claim against a broker, without Spark: who may read, who finds out, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reconsume.sidecar.group_policy import control_log
from reconsume.spark.consumer.claim import Claim, NoPolicyTopicError, PolicyLog, RetriesOwnedError
from reconsume.topics.names import Kind
from reconsume.topics.ownership import OWNER
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.deadline import SOON, until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, Out, dump, produce
from tests.support.python_path import python_path

Claims = Callable[..., Claim]


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    names = fresh_group(kafka.bootstrap)
    return create_group(
        names, leave_out={*names.mains, *names.retries, names.dlq, names.names.events}, also=(Kind.POLICY,)
    )


@pytest.fixture
def claims(group: GroupTopics) -> Iterator[Claims]:
    """Makes starts of queries, which are renewed often."""
    made: list[Claim] = []

    def make(name: str = "ship", *, gated: bool = True) -> Claim:
        client = {"bootstrap.servers": group.bootstrap}
        made.append(
            Claim(client, group.names, name, group.mains, gated=gated, application="app", renew_every=0.2, patience=2.0)
        )
        return made[-1]

    yield make
    for claim in made:
        claim.withdraw()


def beat(group: GroupTopics, instance: str, mode: str = "push") -> None:
    record = SubscriptionRecord({group.main: "*"}, 0, mode=mode)
    produce(group.bootstrap, group.names.policy, [Out(render_record(record), instance_key(instance), partition=0)])


def is_refused(claim: Claim, by: str) -> bool:
    """Whether a start is refused, and the error names who reads."""
    with pytest.raises(RetriesOwnedError) as refused:
        claim.claim_once()
    return refused.value.reader.instance == by


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_second_query_is_refused_until_the_first_has_ended(claims: Claims, first: bool, second: bool) -> None:
    one = claims("one", gated=first)
    one.hold()
    assert is_refused(claims("two", gated=second), "spark/one")
    before = time.monotonic()
    one.withdraw()
    claims("three", gated=second).hold()
    assert time.monotonic() - before < SOON, "it has not waited for the end of the first claim, which takes a minute"


def test_a_sidecar_keeps_a_gated_query_out_and_a_relay_query_only_if_it_delivers_itself(
    group: GroupTopics, claims: Claims
) -> None:
    beat(group, "pod-r", "relay")
    assert is_refused(claims(), "pod-r")
    claims("relay", gated=False).hold()
    beat(group, "pod-1")
    assert is_refused(claims("other", gated=False), "spark/relay")
    produce(group.bootstrap, group.names.policy, [Out(None, instance_key("pod-1"), partition=0)])


def test_the_later_start_of_a_name_goes_on_and_the_earlier_finds_it(group: GroupTopics, claims: Claims) -> None:
    one, two = claims(), claims()
    one.hold()
    two.hold()

    until(lambda: one._lost, SECONDS, "the earlier start finds the later one")
    with pytest.raises(RetriesOwnedError, match=r"^this query ends, because it was started again"):
        one.hold()
    one.withdraw()
    two.hold()
    log = PolicyLog({"bootstrap.servers": group.bootstrap}, group.names)
    log.read_to_end()
    [reader] = log.readers.live(time.time_ns() // 1_000_000)
    assert two._record.query is not None
    assert reader.query is not None
    assert reader.query.nonce == two._record.query.nonce, "the end of the earlier start ends nothing else"


def test_a_claim_is_renewed_and_a_place_that_was_kept_for_a_source_is_taken_by_it(
    group: GroupTopics, claims: Claims
) -> None:
    claims().claim_once()
    held = claims()
    held.hold()
    until(lambda: len(dump(group.bootstrap, group.names.policy)) > 4, SECONDS, "it is renewed")
    held.hold()
    assert {row.key for row in dump(group.bootstrap, group.names.policy)} == {OWNER}
    held.withdraw()
    count = len(dump(group.bootstrap, group.names.policy))
    with pytest.raises(AssertionError):
        until(lambda: len(dump(group.bootstrap, group.names.policy)) > count, 1.0, "it is renewed still")


def test_the_end_of_a_query_waits_for_no_new_connection(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two seconds that an end has are too few for one on a machine that is overloaded: others waited a minute."""
    one = claims("one")
    one.hold()
    with monkeypatch.context() as nothing_new:
        nothing_new.setattr(control_log, "take_client", lambda *_: pytest.fail("a client was made"))
        one.withdraw()
    claims("two").hold()


HOLDER = """
import sys, time
from reconsume.spark.consumer.claim import Claim
from reconsume.topics.names import Names

Claim({"bootstrap.servers": sys.argv[1]}, Names(sys.argv[2]), "killed", ["orders"], gated=True).hold()
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_a_reader_that_was_killed_keeps_others_out_for_60_s_and_no_longer(group: GroupTopics, claims: Claims) -> None:
    words = [sys.executable, "-c", HOLDER, group.bootstrap, group.group]
    environ = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    killed = time.monotonic()
    assert is_refused(claims(), "spark/killed")
    claims("killed").claim_once()  # its own next start does not wait
    began = time.monotonic()

    def is_free() -> bool:
        try:
            claims().claim_once()
        except RetriesOwnedError:
            return False
        return True

    until(is_free, 75.0, "another query may read")
    assert time.monotonic() - began > 50
    assert began - killed < 30


AS_SPARK = """
import os, signal, sys, threading
from types import SimpleNamespace

sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.sql.streaming.python_streaming_source_runner")
"""
AGAIN = """
notify = threading.Condition.notify_all


def asked_again(condition):
    os.kill(os.getpid(), signal.SIGTERM)
    notify(condition)


threading.Condition.notify_all = asked_again
"""
"""Has a process that ends be asked to end once more, while it tells its threads."""


def test_a_source_whose_process_is_asked_twice_to_end_withdraws_its_claim(group: GroupTopics, claims: Claims) -> None:
    program = AS_SPARK + HOLDER.replace("print(", f"{AGAIN}print(")
    words = [sys.executable, "-c", program, group.bootstrap, group.group]
    environ = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.terminate()
        try:
            assert holder.wait(8.0) == 128 + signal.SIGTERM
        finally:
            holder.kill()
    claims().claim_once()  # nobody holds them


def test_a_group_without_policy_topic_is_refused_by_its_name(group: GroupTopics) -> None:
    absent: Any = fresh_group(group.bootstrap)
    with pytest.raises(NoPolicyTopicError, match=f"{absent.names.policy} is missing.*`reconsume topics apply`"):
        Claim({"bootstrap.servers": group.bootstrap}, absent.names, "ship", absent.mains, gated=True).hold()
