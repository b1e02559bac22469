"""What a copy of events lacks, as values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.view.copy import Missing
from reconsume.sidecar.view.records import Gaps, begins_of, shortfall

ONE, TWO = ("events", 0), ("events", 1)
spans = st.dictionaries(
    st.tuples(st.just("events"), st.integers(0, 11)),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)).map(lambda told: Span(told[0], told[0] + told[1])),
)


@given(spans, st.one_of(st.none(), st.integers(1, 10**7)))
def test_at_most_so_many_are_read_the_newest_of_each_partition_and_all_if_they_fit(
    found: dict[tuple[str, int], Span], most: int | None
) -> None:
    begins, total = begins_of(found, most), sum(span.end - span.begin for span in found.values())
    assert all(span.begin <= begins[place] <= span.end for place, span in found.items())
    read = sum(span.end - begins[place] for place, span in found.items())
    if most is None or total <= most:
        assert read == total
    else:
        assert most - len(found) < read <= most


def test_a_copy_is_complete_since_the_first_record_behind_its_last_gap() -> None:
    gaps = Gaps(0)
    gaps.note_gaps({ONE: 0, TWO: 7}, {})
    gaps.met(ONE, 50)
    assert gaps.since == 0, "it was read from its first record on"
    gaps.met(TWO, 60)
    gaps.met(TWO, 90)
    assert gaps.since == 60
    gaps.note_gaps({ONE: 10, TWO: 7}, {ONE: 10, TWO: 30})
    gaps.met(ONE, 100)
    assert gaps.since == 60, "a restart that misses nothing changes nothing"
    gaps.note_gaps({ONE: 11, TWO: 7}, {ONE: 10, TWO: 30})
    gaps.met(ONE, 55)
    assert gaps.since == 60, "the later of the two holds"


def test_what_is_left_out_is_one_sentence_that_names_the_job() -> None:
    assert shortfall(Missing(), 0) == ""
    told = shortfall(Missing(3, 2), 0)
    assert told.startswith("the bound of 2000000 records or 2 GB is reached: 3 done records, the oldest,")
    assert "`reconsume view run`" in told
    assert shortfall(Missing(), 9) == (
        "9 events, the oldest, are left out; Spark's view (`reconsume view run`) has no such bound"
    )
