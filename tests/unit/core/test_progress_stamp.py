"""Progress counts only where it was made: elsewhere the same bits name other records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.offset_ranges import NONE
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import LONGEST, SPAN
from reconsume.sidecar.core.progress_codec import Length, decode, encode
from reconsume.sidecar.core.progress_stamp import decode_at, encode_at, encode_kept_at, misplaced
from reconsume.sidecar.core.record import Partition

HERE = Partition("orders", 3)
MADE = Progress(100, frozenset({101, 180}), deaths=2, mark=105, reach=110, width=6, last_at_ms=1_795_391_078_015)
ABSENT = Progress(100, ours=False)


@pytest.mark.parametrize("topic_id", ["", "-M6OUn4+TR62zRSDg/A1pTQ", "--x_yBi6mSeuXQgm0VZ8UJg"])
def test_progress_counts_in_its_place_whatever_topic_id_a_stamp_has(topic_id: str) -> None:
    """Given stamps of a version that was never released, with ids in either alphabet of base64, then no id decides."""
    assert decode_at(HERE, 100, encode_at(HERE, MADE) + topic_id) == MADE


@pytest.mark.parametrize(
    ("source", "offset", "why"),
    [
        (HERE, 50, "at offset 100, and stands at offset 50"),
        (HERE, 101, "stands at offset 101"),
        (Partition("orders", 4), 100, "for partition 3"),
        (Partition("west.orders", 3), 100, "another topic"),
    ],
)
def test_progress_at_another_offset_partition_or_topic_counts_as_absent(
    source: Partition, offset: int, why: str
) -> None:
    written = encode_at(HERE, MADE)
    assert decode_at(source, offset, written) == Progress(offset, ours=False)
    assert why in misplaced(source, offset, written)


def test_what_an_older_version_left_counts_wherever_it_is_and_an_older_version_reads_ours() -> None:
    assert decode_at(HERE, 100, encode(MADE)) == MADE
    assert decode(100, encode_at(HERE, MADE)) == MADE


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.integers(1, SPAN - 1), max_size=400),
    st.integers(0, 2**62),
    st.integers(0, LONGEST),
)
def test_progress_of_any_length_names_only_done_records_and_only_in_its_place(
    distances: set[int], first: int, most: int
) -> None:
    made = Progress(first, frozenset(first + distance for distance in distances), True, deaths=3, reach=first + 9)
    written = encode_kept_at(HERE, made, NONE, Length(most, most), "a1b2c3d4")
    assert written is not None
    found = decode_at(HERE, first, written)
    assert len(written) <= most
    assert found.done <= made.done
    if found.ours:
        assert (found.deaths, found.reach, found.clean) == (3, first + 9, True)
        assert not decode_at(HERE, first + 1, written).ours
    if most == LONGEST:
        assert found == made
