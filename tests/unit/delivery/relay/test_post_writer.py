"""At the end of the sidecar every post that waits is answered; while Kafka is away few are kept."""

import asyncio
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.delivery.relay.post_writer import MOST_WAITING, Failure, NotWrittenError, PendingPost, PostWriter
from reconsume.sidecar.kafka.clients import CredentialRegistry, Refresh
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}


def pending() -> PendingPost:
    return PendingPost(SettledRecord(record(0), Commit(None), ()), Future())


def test_posts_on_both_sides_of_new_credentials_are_answered_at_once_when_the_writer_stops() -> None:
    writer = PostWriter(NOWHERE, lambda label, seconds: None, CredentialRegistry())
    writer.stop()
    posts = pending(), pending()
    for job in (posts[0], Refresh.KEYS, posts[1]):
        writer._jobs.put(job)
    writer.run()
    for post in posts:
        assert post.done.result(timeout=0) == Failure(NotWrittenError, "the sidecar stops; nothing was written")


def large() -> SettledRecord:
    return SettledRecord(replace(record(0), value=b"x" * (MOST_WAITING // 4)), Commit(None), ())


def test_posts_that_nobody_takes_while_kafka_is_away_fill_no_memory() -> None:
    """Given a service that posts on and on while there is no producer, then it is told so, until posts are taken."""
    writer = PostWriter(NOWHERE, lambda label, seconds: None, CredentialRegistry())

    async def posting(count: int) -> list[asyncio.Task[None]]:
        posts = [asyncio.create_task(writer.post(large())) for _ in range(count)]
        await asyncio.wait(posts, timeout=0.1)
        return posts

    async def story() -> None:
        first = await posting(10)
        refused = [post for post in first if post.done()]
        assert len(refused) == 7
        for post in refused:
            with pytest.raises(NotWrittenError, match="too many posts wait"):
                post.result()
        writer.stop()
        await asyncio.to_thread(writer.run)
        later = await posting(1)
        assert not later[0].done(), "there is room again"
        for post in (*first, *later):
            post.cancel()
        await asyncio.gather(*first, *later, return_exceptions=True)

    asyncio.run(story())
