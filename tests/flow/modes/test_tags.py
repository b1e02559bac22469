"""Subscriptions by tag on a real broker: what is not asked for is passed over, and counts as done."""

from __future__ import annotations

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.evidence import collect
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request

TAGS = (b"TagA", b"TagB", b"TagC", None)


def test_only_what_is_asked_for_is_delivered_and_all_of_it_is_done(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Three topics: two tags, all, and one tag."""
    group = create_group(new_group(3), partitions=2)
    two, every, one = group.mains
    subscriptions = [{"name": two, "tags": "TagA || TagB"}, every, {"name": one, "tags": "TagA"}]
    sent: dict[bytes | None, set[str | None]] = {}

    def fail_first(request: Request) -> Behaviour:
        sent.setdefault(request.value, set()).add(request.headers.get("reconsume-tags"))
        return FAIL if request.times == 0 else OK

    service = start_service(fail_first)
    sidecar = start_sidecar(group, service.url, overrides={"topics": subscriptions})
    for topic in group.mains:
        tagged = [Out(tag or b"none", headers=(("other", b"TagA"), ("TAGS", tag))) for tag in TAGS] * 5
        produce(group.bootstrap, topic, [*tagged, Out(b"bare")])
    sidecar.until(lambda: len(service.ledger.taken()) == 10 + 21 + 5, 30, "all that is asked for is taken")
    await_quiet(group, 20)
    passed = {topic: sidecar.metric(f'reconsume_passed_over_total{{topic="{topic}"}}') for topic in group.mains}
    assert passed == {two: 11, every: 0, one: 16}
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    values = {topic: {d.value for d in evidence.deliveries if d.id.startswith(f"{topic}:")} for topic in group.mains}
    assert values == {two: {b"TagA", b"TagB"}, every: {b"TagA", b"TagB", b"TagC", b"none", b"bare"}, one: {b"TagA"}}
    assert all(evidence.covers(topic, row) for topic, row in evidence.sources.values())
    named = {value: {value.decode()} for value in (b"TagA", b"TagB", b"TagC")}
    assert sent == {**named, b"none": {None}, b"bare": {None}}, "requests and their retries name the tag"
    assert len(evidence.lives) == 10 + 21 + 5, "what was passed over has no copy"


def test_the_group_names_the_header_that_has_the_tag(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(1), partitions=1)
    service = start_service(lambda request: FAIL if request.times == 0 else OK)
    topics = [{"name": group.mains[0], "tags": "gold"}]
    sidecar = start_sidecar(group, service.url, overrides={"topics": topics, "tags_header": "x-kind"})
    pairs = [(b"gold", b"none"), (b"none", b"gold"), (b"gold", b"gold")]
    produce(
        group.bootstrap,
        group.mains[0],
        [Out(b"|".join(pair), headers=(("x-kind", pair[0]), ("TAGS", pair[1]))) for pair in pairs],
    )
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 30, "what is gold by x-kind is taken, after its retry")
    await_quiet(group, 20)
    assert sidecar.stop().code == 0
    deliveries = collect(group, service.ledger).deliveries
    assert {delivery.value for delivery in deliveries} == {b"gold|none", b"gold|gold"}
    assert {dict(delivery.headers)["reconsume-tags"] for delivery in deliveries} == {"gold"}
