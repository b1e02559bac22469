"""`retries list --blocked`: what waits by keys, read from the queue topics themselves."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from reconsume.sidecar.cli.retries.rows import for_people
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.waiting_keys import WaitingKey
from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.group_policy.blocking import Blocking, Retried, retried_in_place
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.in_place_told import MOST

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.listed_records import WaitingScan

CLIENT = "reconsume-retries"
KEYS = ("id", "key", "behind", "parked", "times", "due", "reason", "oldest_at", "topic", "partition", "in_place")
OF_FIRST = ("id", "times", "redrives", "due", "parked", "reason", "at")
"""What is shown of a key's first record."""
CUT = ("key", "reason")


NOT_DONE = "open"
"""The default of `--state`: what waits for a retry, and what was redriven and is not done or dead again."""


def refuse_with_blocked(state: str, level: str | None, reason: str | None, due: str | None) -> None:
    """Raise BadParameter if one of these options is there, which ask for records of the view."""
    if state != NOT_DONE or any((level, reason, due)):
        raise typer.BadParameter("--blocked goes with --topic, --limit and --most alone: it shows keys")


def list_blocked(options: Options, topic: str | None, limit: int | None, most: int | None) -> None:
    """Print the keys of which records wait, those first that are due first."""
    from reconsume.sidecar.kafka.listed_records import NoQueuesError  # imports the Kafka client, as in `read`

    settings = settings_for_kafka(options)
    retried = read_retried(settings)
    if topic is not None:
        of_topic = tuple(one for one in retried.named if one.source is not None and one.source[0] == topic)
        retried = retried._replace(named=of_topic)
    named = list(retried.named)
    try:
        scan = read(settings, topic, most)
    except NoQueuesError:
        if not named:
            raise
        keys = []
    else:
        keys = scan.keys.by_due()
        named = retried.in_no_queue({key.first.id for key in keys})
        talk(f"{plural(len(keys), 'key')} blocked, {plural(scan.keys.waiting, 'record')} of them waiting")
    if retried.records:
        talk(in_place_sentence(retried))
    rows = [*(in_place_row(one) for one in named), *(key_row(key, retried) for key in keys)][:limit]
    options.output.rows(KEYS, [for_people(row, options.output.format) for row in rows], CUT)


def read_retried(settings: Settings) -> Retried:
    """Return what the running instances retry in place; say so if that is not known."""
    from reconsume.sidecar.group_policy.control_log import ControlLog  # imports the Kafka client, as in `read`
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    try:
        state = ControlLog(Cluster(settings.kafka, CLIENT), settings.names).read_if_there()
    except BrokerError as fault:
        talk(f"warning: how many records are retried in place is not known: {fault}")
        state = None
    return retried_in_place({} if state is None else state.beats.known(), wall() - SILENT_AFTER)


def in_place_sentence(retried: Retried) -> str:
    """Return a sentence about the records that are retried in place."""
    sentence = retried.sentence(wall())
    listed = f"those that fail longest are listed first, at most {MOST} of an instance" if retried.named else ""
    more = f"`{hint('find --topic TOPIC')}` lists all that is not done" if len(retried.named) < retried.records else ""
    return "; ".join(filter(None, (sentence, listed, more)))


def beside_list(settings: Settings, retried: Retried) -> str:
    """Return a sentence of what `retries list` does not have: retries in place. Empty if the group has none."""
    if retried.records:
        return f"{retried.sentence(wall())}, whose attempts have no events: see `{hint('retries list --blocked')}`"
    if settings.deliver.order != "none" and not settings.queued:
        return f"failures are retried in place here, without events: see `{hint('retries list --blocked')}`"
    return ""


def in_place_row(one: Blocking) -> Row:
    """Return a record that is retried in place as a row of its key. How much is behind it is not known."""
    head, (topic, partition) = one.head, one.source or (None, None)
    return {
        "id": head.id,
        "key": None,
        "key_base64": None,
        "behind": None,
        "parked": False,
        "times": head.times,
        "due": head.due,
        "reason": head.reason,
        "oldest_at": None,
        "topic": topic,
        "partition": partition,
        "redrives": 0,
        "at": one.at,
        "in_place": True,
    }


def read(settings: Settings, topic: str | None, most: int | None) -> WaitingScan:
    """Read the queue topics, and say on stderr what was left out. Raises ConfigError if the group has no order."""
    from reconsume.sidecar.kafka.admin.cluster import (
        Cluster,  # the Kafka client is slow to import, and --help needs none
    )
    from reconsume.sidecar.kafka.listed_records import MOST_READ, Wanted, read_waiting

    order = settings.deliver.order
    if order == "none":
        raise ConfigError("deliver.order is none: only ordered groups have queues of keys")
    if topic is not None and topic not in settings.topic_names:
        raise typer.BadParameter(not_ours(topic, settings.topic_names))
    policy = build_policy(settings, CLIENT)
    wanted = Wanted(None, min(most or MOST_READ, MOST_READ), 1)
    topics = settings.topic_names if topic is None else (topic,)
    cluster = Cluster(settings.kafka, CLIENT)
    with progress_bar("records of the queues") as progress:
        scan = read_waiting(cluster, policy, topics, order, wanted, progress)
    for line in remarks(scan):
        talk(f"warning: {line}")
    return scan


def remarks(scan: WaitingScan) -> Iterator[str]:
    """Yield what is not shown, and why."""
    if scan.missing:
        yield scan.missing
    if scan.bad:
        are = "is no copy" if scan.bad == 1 else "are no copies"
        yield f"in the queue topics {plural(scan.bad, 'record')} {are} of ours: a sidecar makes dead letters of such"
    if scan.keys.beyond:
        yield f"{plural(scan.keys.beyond, 'record')} of further keys wait"


def key_fields(key: WaitingKey) -> dict[str, Any]:
    """Return a key, or its beginning, as text, if it is text, and as Base64, if it is shown whole."""
    if key.key is None:
        return {"key": None, "key_base64": None}
    if key.whole is None:
        return {"key": key.key.decode(errors="ignore") + "…", "key_base64": None}
    try:
        text = key.key.decode()
    except UnicodeDecodeError:
        text = None
    return {"key": text, "key_base64": base64.b64encode(key.key).decode()}


def key_row(key: WaitingKey, retried: Retried) -> Row:
    """Return a key with its first record as a row: as its last attempt in place says, if it is retried in place."""
    one = retried.in_queue(key.first.id, key.first.due)
    waits = {"behind": key.waiting - 1, "oldest_at": key.oldest_at, "in_place": one is not None}
    tried = {} if one is None else {"times": one.head.times, "due": one.head.due, "reason": one.head.reason}
    first = {name: getattr(key.first, name) for name in OF_FIRST}
    return {**first, "topic": key.topic, "partition": key.partition, **key_fields(key), **waits, **tried}
