"""Posts of a relay that Kafka refuses, on a real broker: they fail alone, and nothing of them stays in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.delivery.relay.post_writer import NotWrittenError, PostWriter, TooLargeError
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.conftest import MakeTopic
from tests.sim.samples import record
from tests.support.freed import nothing_left
from tests.support.kafka.broker import Broker
from tests.support.kafka.dense import dense
from tests.support.kafka.topic_io import dump

POSTS = 60
LARGE = range(7, POSTS, 20)
SECONDS = 60.0
"""No post has its answer later."""


@contextmanager
def writing(kafka: Broker) -> Iterator[PostWriter]:
    """A writer that is started by the test, so that all posts before are one group."""
    config = producer_config({"bootstrap.servers": kafka.bootstrap}, f"posts-{uuid.uuid4().hex}", "posts")
    writer = PostWriter(config, lambda label, seconds: None, CredentialRegistry())
    try:
        yield writer
    finally:
        writer.stop()
        if writer.ident is not None:
            writer.join(SECONDS)
            assert not writer.is_alive()


def post_of(topic: str, value: bytes) -> SettledRecord:
    return SettledRecord(record(0), Commit(None), (Copy(topic, None, value, []),))


async def post_together(writer: PostWriter, posts: Sequence[SettledRecord]) -> list[type[BaseException] | None]:
    """What becomes of posts that come at once: the class of each one's error."""
    tasks = [asyncio.create_task(writer.post(post)) for post in posts]
    await asyncio.sleep(0)  # each has handed its post over
    writer.start()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SECONDS)
    return [None if one is None else type(one) for one in done]


def test_a_post_that_is_too_large_is_refused_alone(kafka: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes=200_000)
    values = [b"%d:" % number + dense(300_000 if number in LARGE else 1_000) for number in range(POSTS)]
    with writing(kafka) as writer:
        ends = asyncio.run(post_together(writer, [post_of(topic, value) for value in values]))
    assert ends == [TooLargeError if number in LARGE else None for number in range(POSTS)]
    written = {row.value for row in dump(kafka.bootstrap, topic)}
    assert written == {value for number, value in enumerate(values) if number not in LARGE}


def test_posts_that_fit_alone_are_written_where_many_together_are_too_large(
    kafka: Broker, make_topic: MakeTopic
) -> None:
    """The client packs records up to its own limit, and Kafka refuses the pack: no post is to blame."""
    topic = make_topic(max_message_bytes=4_000)
    with writing(kafka) as writer:
        ends = asyncio.run(post_together(writer, [post_of(topic, b"x" * 1_000)] * POSTS))
    assert ends == [None] * POSTS
    assert len(dump(kafka.bootstrap, topic)) == POSTS


def test_posts_whose_topic_is_missing_fail_alone_and_are_not_kept(kafka: Broker, make_topic: MakeTopic) -> None:
    topic, missing = make_topic(), f"missing-{uuid.uuid4().hex}"
    with writing(kafka) as writer:

        async def story() -> None:
            assert await post_together(writer, [post_of(topic, b"1"), post_of(missing, b"2")]) == [
                None,
                NotWrittenError,
            ]
            with nothing_left(mib=60):
                for number in range(200):
                    with pytest.raises(NotWrittenError, match="is missing"):
                        await writer.post(post_of(missing, bytes([number % 256]) * 1_000_000))

        asyncio.run(story())
    assert [row.value for row in dump(kafka.bootstrap, topic)] == [b"1"]


@pytest.mark.long
def test_posts_that_are_too_large_are_not_kept_and_neither_are_their_producers(
    kafka: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with writing(kafka) as writer:

        async def story() -> None:
            assert await post_together(writer, [post_of(topic, b"1")]) == [None]
            with nothing_left(mib=60, threads=40, descriptors=90):
                for number in range(200):
                    with pytest.raises(TooLargeError):
                        await writer.post(post_of(topic, dense(1_100_000, number)))

        asyncio.run(story())
    assert [row.value for row in dump(kafka.bootstrap, topic)] == [b"1"]
