"""`instances`: the instances of the group that run, by their heartbeats and by Kafka's consumer groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk
from reconsume.sidecar.clock import wall
from reconsume.topics.ownership import CLAIM_LIVES

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.state import Beat, ControlState
    from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup
    from reconsume.sidecar.settings.model import Settings
    from reconsume.sidecar.ui.progress import Lags

COLUMNS = (
    *("instance", "state", "topics", "tags", "mode", "version", "pace", "lag", "settings", "follows", "as_of"),
    *("order", "batch", "reads", "in_flight", "commit", "started"),
)
QUERY_KEPT = 7 * 24 * 3_600_000
"""ms after its last heartbeat for which a silent query is listed: so long Kafka keeps its progress."""
LATE = 75_000
"""ms after a heartbeat by which the next one has come from every instance that runs."""


def instances(options: Options) -> None:
    """List the instances of the group.

    Each with its topics and tags, mode, version, pace, lag (offsets that are not done in its partitions), the settings
    that it has and those that it follows, and the time of its heartbeat (`as_of`): one comes each minute, and within
    seconds of a change. An instance that was killed stays on the list as `silent` for 3 minutes, and counts as live for
    so long. One that was stopped is gone at once. A Spark query is `spark/NAME`, and is
    silent 60 s after its last heartbeat.

    \b
    Examples:
      reconsume instances
      reconsume instances -o jsonl
    """
    from reconsume.sidecar.group_policy.agreement import group_settings
    from reconsume.sidecar.group_policy.control_log import ControlLog
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.ui.progress import read_lags

    settings = settings_for_kafka(options)
    cluster, names = Cluster(settings.kafka, "reconsume-instances"), settings.names
    state, now_ms = ControlLog(cluster, names).read(), wall()
    groups = cluster.groups((names.group, names.retry_group))
    lags = read_lags(cluster, group_settings(settings, state, now_ms).settings)
    if lags.unseen:
        talk(f"not for this user to see, so not in the lag: {', '.join(lags.unseen)}")
    rows = list(rows_of(state, groups, lags, settings, now_ms))
    if not rows:
        talk("no instance runs")
    if options.output.format is Format.TABLE:
        rows = [{**row, **{name: clock(int(str(row[name]))) for name in ("as_of", "started")}} for row in rows]
    options.output.rows(COLUMNS, rows)


def rows_of(
    state: ControlState, groups: Mapping[str, ConsumerGroup], lags: Lags, settings: Settings, now_ms: int
) -> Iterator[Row]:
    """Yield a row for each instance with a heartbeat that is not older than 3 minutes. `now_ms`: epoch ms."""
    from reconsume.sidecar.group_policy.control_log import members_of

    yield from query_rows(state, lags, settings, now_ms)
    for name, beat in sorted(state.beats.running(now_ms).items()):
        record = beat.record
        members = members_of(name, groups)
        holds = frozenset((group, partition) for group, member in members for partition in member.partitions)
        is_missing = settings.names.group in groups and not members
        yield {
            "instance": name,
            "state": "silent" if is_silent(beat, now_ms, is_missing=is_missing) else "live",
            "topics": sorted(record.subscription),
            "tags": {topic: tags for topic, tags in record.subscription.items() if tags != "*"},
            "mode": record.mode,
            "version": "" if record.release is None else record.release.version,
            "pace": "" if record.pace is None else record.pace.state,
            "lag": lags.of(holds),
            "settings": record.settings,
            "follows": "" if record.obeys is None else record.obeys.settings,
            "as_of": beat.at,
            "order": record.order,
            "batch": record.batch,
            "reads": sorted({topic for _, (topic, _) in holds}),
            "in_flight": None if record.pace is None else record.pace.in_flight,
            "commit": "" if record.release is None else record.release.commit,
            "started": record.started,
        }


def query_rows(state: ControlState, lags: Lags, settings: Settings, now_ms: int) -> Iterator[Row]:
    """Yield a row for each Spark query that has not ended. A silent one stays for a week, as its progress does."""
    for reader in state.readers.queries():
        query, record = reader.query, reader.record
        if query is None or now_ms - reader.at > QUERY_KEPT:
            continue
        mains = {*settings.topic_names, settings.names.ready}
        read = {one for one in lags.behind if query.gated or one[1][0] in mains}
        yield {
            **dict.fromkeys(COLUMNS, ""),
            "instance": reader.instance,
            "state": "live" if now_ms - reader.at <= CLAIM_LIVES else "silent",
            "topics": sorted(record.subscription),
            "tags": {},
            "mode": record.mode,
            "lag": lags.of(read),
            "as_of": reader.at,
            "batch": 0,
            "reads": sorted({topic for _, (topic, _) in read}),
            "in_flight": None,
            "started": record.started,
        }


def is_silent(beat: Beat, now_ms: int, *, is_missing: bool) -> bool:
    """Return whether an instance seems to have ended without a word.

    `is_missing`: Kafka has no member of the group that is this instance, although its heartbeat says that it works.
    """
    return now_ms - beat.at > LATE or (is_missing and beat.record.well is True and beat.record.mode != "relay")
