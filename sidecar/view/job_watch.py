"""Ask Kafka whether the Spark job keeps up with the events, for `view.source: auto`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.connection import SilentError
from reconsume.sidecar.kafka.admin.descriptions import Offset
from reconsume.sidecar.kafka.client_config import view_config
from reconsume.sidecar.view.age import all_read, committed
from reconsume.sidecar.view.forms import position_topics
from reconsume.sidecar.view.source import Source, limit_of, wanted_source
from reconsume.topics.names import Names

_LOG = logging.getLogger("reconsume.view")


class JobWatch:
    """Two clients that ask, each time it is wanted. No record is read."""

    def __init__(self, kafka: Mapping[str, str], names: Names, client: str) -> None:
        self._names = names
        self._cluster = Cluster(kafka)
        self._job = Consumer(view_config(kafka, names.view_group, client))

    def close(self) -> None:
        self._job.close()

    def wanted(self, now: Source) -> Source:
        """Return what should be followed while `now` is. Takes some seconds if Kafka does not answer."""
        try:
            return self.wanted_once(now)
        except SilentError:
            return now

    def wanted_once(self, now: Source) -> Source:
        """Return the same. Raises SilentError if no broker answers: whoever reads once has nothing to go on with."""
        return wanted_source(Source.AUTO, now, self._keeps_up(limit_of(now)))

    def _keeps_up(self, limit: int) -> bool | None:
        """Whether the job has read all events that are older than `limit` ms; None if Kafka does not say.

        Raises SilentError.
        """
        try:
            topics = self._cluster.find([self._names.events, self._names.view])
            if len(topics) < 2:
                return False
            partitions, before = topics[self._names.events].all_partitions, wall() - limit
            ends = {
                partition: listed.offset for partition, listed in self._cluster.offsets(partitions, Offset.END).items()
            }
            if (read := committed(self._job, ends, position_topics(topics, self._names))) is None:
                return False
            firsts = {
                partition: listed.offset for partition, listed in self._cluster.offsets(partitions, before).items()
            }
            return all_read(read, ends, firsts)
        except SilentError as failure:
            _LOG.debug("whether the Spark job keeps up is unknown: %s", failure, extra={"event": "view-job-unknown"})
            raise
        except (BrokerError, KafkaException) as failure:
            _LOG.debug("whether the Spark job keeps up is unknown: %s", failure, extra={"event": "view-job-unknown"})
            return None


def source_now(
    configured: Source, kafka: Mapping[str, str], names: Names, client: str, *, must_answer: bool = False
) -> Source:
    """Return what to read once, by the same rule. Raises SilentError if a broker `must_answer` and none does."""
    if configured is not Source.AUTO:
        return configured
    job = JobWatch(kafka, names, client)
    choose = JobWatch.wanted_once if must_answer else JobWatch.wanted
    try:
        return choose(job, Source.EVENTS)
    finally:
        job.close()
