"""What a query's consumers share, and what each may hold: pure, without Spark."""

from __future__ import annotations

import pytest

from reconsume.spark.job.query import GROUP, consumer_options, kept_consumers, tasks_of

FETCH, POLL = "kafka.max.partition.fetch.bytes", "kafka.max.poll.records"


@pytest.mark.parametrize(
    ("partitions", "fetch", "poll"),
    [(1, 1_048_576, 500), (64, 1_048_576, 500), (65, 524_288, 250), (1_206, 32_768, 32), (20_000, 32_768, 32)],
)
def test_a_consumer_holds_less_where_there_are_many(partitions: int, fetch: int, poll: int) -> None:
    options = consumer_options(partitions, 0)
    assert (options[FETCH], options[POLL]) == (str(fetch), str(poll))


@pytest.mark.parametrize("partitions", [1, 6, 120, 1_200])
def test_the_ends_of_a_tasks_partitions_take_a_tenth_of_a_second_at_most(partitions: int) -> None:
    """With Kafka's own half a second each batch of 120 partitions took eight seconds, with 20 ms nearly two."""
    wait_ms = int(consumer_options(partitions, 0)["kafka.fetch.max.wait.ms"])
    assert partitions / tasks_of(partitions, 16, local=True) * wait_ms <= 100


def test_all_fetched_ahead_of_many_partitions_fits_into_a_small_heap() -> None:
    for partitions in range(1, 2_000, 7):
        assert partitions * int(consumer_options(partitions, 0)[FETCH]) <= 64 << 20, partitions


def test_the_same_group_always_has_the_same_options() -> None:
    """Spark refuses a second set of options for a consumer that it keeps."""
    by_group: dict[str, dict[str, str]] = {}
    for partitions in range(1, 3_000):
        for era in (0, 1):
            options = consumer_options(partitions, era)
            assert by_group.setdefault(options[GROUP], options) == options


@pytest.mark.parametrize(("files", "kept"), [(-1, 2_560), (1_048_576, 2_560), (16_000, 2_000), (256, 64)])
def test_no_more_consumers_are_kept_than_there_may_be_files(files: int, kept: int) -> None:
    assert kept_consumers(files) == kept


@pytest.mark.parametrize(
    ("partitions", "at_once", "local", "tasks"),
    [
        (6, 16, True, 2),
        (74, 16, True, 2),
        (120, 16, True, 4),
        (1_200, 16, True, 16),
        (1_200, 2, True, 2),
        (6, 1, True, 1),
        (6, 8, False, 8),
        (1_200, 8, False, 8),
    ],
)
def test_tasks_are_many_where_they_would_wait_one_after_another(
    partitions: int, at_once: int, local: bool, tasks: int
) -> None:
    assert tasks_of(partitions, at_once, local=local) == tasks
