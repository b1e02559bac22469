"""Judge what all running instances say of their last minutes: failures, new dead letters, and records that wait.

Heartbeats carry the sums (`topics/instance_sums.py`), so it does not matter which instance is near, or whether there is
a view. A heartbeat is sent once a minute, within 15 s if it has bad news: each finding says how old the oldest sum is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.ages import Age, stalled
from reconsume.sidecar.core.pace.pace import Cause, State
from reconsume.sidecar.core.reasons import meaning_of
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.blocking import Blocking, retried_in_place
from reconsume.sidecar.group_policy.queries import live_queries, reads_of
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import ago, plural
from reconsume.topics.instance_sums import DEAD_LETTERS_MS, FAILURES_MS, InstanceSums, TopicLag
from reconsume.topics.policy_record import PaceTold

FEWEST = 20
"""Attempts of a topic below which no share is judged."""
WARN_SHARE, FAIL_SHARE = 0.1, 0.5
STALLED = (
    "see `partitions` in /status of the instance that has it, and ReconsumePartitionStalled on the page 'Runbook' of "
    "the documentation"
)
UNTOLD = "the policy topic cannot be read, where the instances report this"
START = "start an instance, or wait a minute for its heartbeat"


class RunningSums(NamedTuple):
    """The sums of the running instances, `silent` instances that sent none, and what keeps the answer incomplete."""

    sums: tuple[InstanceSums, ...]
    missing: tuple[Finding, ...]
    oldest_ms: int


def running_sums(state: ControlState | None, at: Now) -> RunningSums:
    """Return the sums of the instances that run."""
    if state is None:
        return RunningSums((), (not_checked(UNTOLD, "see the checks of topics and rights"),), 0)
    heartbeats = [beat.record for beat in state.beats.running(at.wall_ms).values()]
    sums = tuple(record.sums for record in heartbeats if record.sums is not None)
    if not sums and (queries := live_queries(state, at.wall_ms)):
        return RunningSums((), (not_checked(", ".join(map(reads_of, queries))),), 0)
    if not sums:
        return RunningSums((), (not_checked("no running instance reports this", START),), 0)
    missing = []
    if len(sums) < len(heartbeats):
        missing.append(
            not_checked(f"no report yet from {plural(len(heartbeats) - len(sums), 'running instance')}", START)
        )
    if omitted := sum(one.omitted for one in sums):
        missing.append(not_checked(f"{plural(omitted, 'topic')} had no room in heartbeats", "see the metrics"))
    return RunningSums(sums, tuple(missing), max(0, at.wall_ms - min(one.at for one in sums)))


def failures(state: ControlState | None, at: Now) -> list[Finding]:
    """Report topics of which much failed in the last five minutes, and why."""
    sums, missing, oldest_ms = running_sums(state, at)
    attempts, failed = Counter[str](), Counter[str]()
    reasons = defaultdict[str, Counter[str]](Counter)
    for topic in (topic for one in sums for topic in one.failures):
        attempts[topic.topic] += topic.attempts
        failed[topic.topic] += topic.failed
        reasons[topic.topic].update(topic.reasons)
    beats = {} if state is None else state.beats.running(at.wall_ms)
    in_place = any(beat.record.retried_in_place for beat in beats.values())
    findings = list(missing)
    for name, count in sorted(attempts.items()):
        share = failed[name] / count if count else 0
        if count < FEWEST or share < WARN_SHARE:
            continue
        counted = plural(count, "attempt")
        text = f"{name}: {share:.0%} of {counted} failed in the last {ago(FAILURES_MS)}: {ranked(reasons[name])}"
        findings.append((fail if share >= FAIL_SHARE else warn)(text, where_to_look(name, in_place=in_place)))
    if sums and findings == list(missing):
        total = f"{failed.total()} of {plural(attempts.total(), 'attempt')} failed in the last {ago(FAILURES_MS)}"
        few = {name: count for name, count in attempts.items() if failed[name] >= WARN_SHARE * count and count < FEWEST}
        if failed.total() and few:
            total += f"; too few to judge: {few_attempts(few)}"
        findings.append(ok(total))
    return dated(findings, sums, oldest_ms)


def where_to_look(topic: str, *, in_place: bool) -> str:
    """Return what lists the failed records of a topic. `in_place`: some of the group are retried in place."""
    if not in_place:
        return f"see `{hint('retries list')}`, and the log of the service"
    return (
        f"retries in place are not in `{hint('retries list')}`: `{hint('retries list --blocked')}` names those that "
        f"fail longest, and `{hint(f'find --topic {topic}')}` lists all that is not done"
    )


def dead_letters(state: ControlState | None, at: Now) -> list[Finding]:
    """Report new dead letters of the last 15 minutes, by reason."""
    sums, missing, oldest_ms = running_sums(state, at)
    reasons = defaultdict[str, Counter[str]](Counter)
    for topic in (topic for one in sums for topic in one.dead_letters):
        reasons[topic.topic].update(topic.reasons)
    findings = list(missing)
    for name, counts in sorted(reasons.items()):
        new = plural(counts.total(), "new dead letter")
        findings.append(warn(f"{name}: {new} in the last {ago(DEAD_LETTERS_MS)}: {ranked(counts)}", hint("dlq list")))
    if sums and not reasons:
        findings.append(ok(f"no new ones in the last {ago(DEAD_LETTERS_MS)}"))
    return dated(findings, sums, oldest_ms)


def parked(state: ControlState | None, at: Now) -> list[Finding]:
    """Report keys whose first record has used up its retries and waits for an operator (`retry.ordered_exhausted`)."""
    sums, missing, oldest_ms = running_sums(state, at)
    findings = list(missing)
    if count := sum(one.parked for one in sums):
        waits = "is parked, and waits" if count == 1 else "are parked, and wait"
        again = hint("settle --waiting --level parked --retry-now --why repaired")
        look = f"`{hint('retries list --blocked')}` lists them; once the cause is repaired, `{again}` has them tried"
        findings.append(warn(f"{plural(count, 'key')} {waits} until an operator settles the first record", look))
    elif sums:
        findings.append(ok("no key is parked"))
    return dated(findings, sums, oldest_ms)


def lag(state: ControlState | None, topics: Collection[str], at: Now) -> list[Finding]:
    """Report main topics and partitions whose oldest undelivered record has waited for long."""
    sums, missing, oldest_ms = running_sums(state, at)
    beats = {} if state is None else state.beats.running(at.wall_ms)
    away = tuple(
        beat.record.sums for beat in beats.values() if beat.record.sums is not None and is_away(beat.record.pace)
    )
    named = retried_in_place({name: beat.record for name, beat in beats.items()}, 0).named
    blocking = {Partition(*one.source): one for one in reversed(named) if one.source is not None}
    stalls = waiting(newest(sums), topics, frozenset(newest(away)), blocking, at.wall_ms)
    findings = [*missing, *stalls] if sums else list(missing)
    if sums and state is not None and state.holds.in_force(at.wall_ms).records:
        findings[-1] = replace(findings[-1], finding=f"{findings[-1].finding}; what operators hold is not counted")
    return dated(findings, sums, oldest_ms)


def is_away(pace: PaceTold | None) -> bool:
    """Return whether an outage keeps an instance from delivering anything, which the check of instances reports."""
    return pace is not None and pace.state == State.OUTAGE and pace.cause in (Cause.UNREACHABLE, Cause.UNWELL)


def newest(sums: Sequence[InstanceSums]) -> dict[Partition, TopicLag]:
    """Return what was said of each partition last: its instance may be another one since."""
    lags: dict[Partition, TopicLag] = {}
    for one in sorted(sums, key=lambda one: one.at):
        lags.update({Partition(lag.topic, lag.partition): lag for lag in one.lag})
    return lags


def waiting(
    lags: Mapping[Partition, TopicLag],
    topics: Collection[str],
    away: Collection[Partition] = (),
    blocking: Mapping[Partition, Blocking] = MappingProxyType({}),
    wall_ms: int = 0,
) -> Iterator[Finding]:
    """Yield the findings about main topics. `away`: partitions of instances that deliver nothing in an outage.

    `blocking`: by partition, the record that fails longest in place, seen from `wall_ms` (epoch ms).
    """
    ages = [Age(source, lag.oldest) for source, lag in lags.items()]
    # Of the other partitions of an instance only the oldest is known, and not its number.
    ages += [Age(Partition(lag.topic, -1 - lag.partition), lag.next) for lag in lags.values() if lag.next is not None]
    stalled_ages = [age for age in stalled(ages) if age.source.number >= 0]
    for source, waited_ms in stalled_ages:
        if source in away:
            yield ok(f"{source}: waits for the end of an outage, see the check of instances")
            continue
        grows = ", and this grows" if lags[source].grows else ""
        topic, number = source
        text = f"{topic}[{number}]: its oldest undelivered record has waited for {ago(waited_ms)}{grows}"
        text += f": {meaning}" if (meaning := meaning_of(lags[source].why)) else ""
        if (one := blocking.get(source)) is not None:
            text += f"; {one.head.id} is retried in place: {one.fails(wall_ms)}"
        yield warn(text, STALLED)
    known = {source.topic for source in lags}
    if unknown := set(topics) - known:
        yield not_checked(f"no running instance has a partition of {listed(unknown)}", START)
    if known and not stalled_ages:
        yield ok(f"no undelivered record has waited for more than {ago(max(lag.oldest for lag in lags.values()))}")


def ranked(counts: Mapping[str, int]) -> str:
    """Return reasons with their numbers, the most frequent first."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:10])


def few_attempts(attempts: Mapping[str, int]) -> str:
    """Return the topics with fewer attempts than a share is judged from, and how many they have."""
    return listed(f"{name} has {count} of at least {plural(FEWEST, 'attempt')}" for name, count in attempts.items())


def dated(findings: Sequence[Finding], sums: Sequence[InstanceSums], oldest_ms: int) -> list[Finding]:
    """Return the findings with the age of the oldest sum behind the last one."""
    if not sums:
        return list(findings)
    *others, last = findings
    instances = plural(len(sums), "instance")
    age = "just made" if oldest_ms < 1_000 else f"{ago(oldest_ms)} old"
    return [*others, replace(last, finding=f"{last.finding} (of {instances}; the oldest sum is {age})")]
