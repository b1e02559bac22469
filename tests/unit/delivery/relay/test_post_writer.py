"""At the end of the sidecar every post that waits is answered, whatever waits between them."""

from concurrent.futures import Future

import pytest

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.decide import Commit
from sidecar.delivery.relay.post_writer import NotWrittenError, PendingPost, PostWriter
from sidecar.kafka.credentials.registry import CredentialRegistry, Refresh
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
        with pytest.raises(NotWrittenError, match="the sidecar stops"):
            post.done.result(timeout=0)
