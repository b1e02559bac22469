"""Metadata that cannot be read is named, and counts as none: what was done is delivered again, and nothing is lost."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode, encode, unread

NEAR = encode(Progress(100, {103, 105}))
FAR = encode(Progress(100, {50_000}))


@pytest.mark.parametrize(
    "metadata", [None, "", "x", "rc", "rcx.y", "other.rc3", "consumer-1", NEAR, FAR, NEAR + ".1.2"]
)
def test_nothing_is_said_of_what_is_read_and_of_what_is_not_ours(metadata: str | None) -> None:
    assert unread(metadata) == ""


@pytest.mark.parametrize("metadata", ["rc3c.abc", "rc3", "rc12o.", "rc2x.", "rc1"])
def test_a_form_of_a_newer_version_is_named_and_means_nothing_done(metadata: str) -> None:
    form = metadata.partition(".")[0]
    assert unread(metadata) == f"a newer version of Reconsume wrote it, in the form {form!r}"
    assert decode(100, metadata) == Progress(100, ours=False)


def test_a_form_is_named_with_twelve_characters_at_most() -> None:
    assert unread("rc3" + "x" * 30) == f"a newer version of Reconsume wrote it, in the form {'rc3xxxxxxxxx'!r}"


@pytest.mark.parametrize("metadata", ["rc1o.!", "rc1c.!..3", "rc2o.!"])
def test_a_broken_done_set_is_named_and_the_offset_counts_all_the_same(metadata: str) -> None:
    assert unread(metadata) == "its done set is broken"
    read = decode(100, metadata)
    assert (read.next, read.done, read.ours) == (100, frozenset(), True)
