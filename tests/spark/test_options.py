"""The job's arguments: pure, without Spark."""

from __future__ import annotations

import pytest

from reconsume.spark.options import Run, Sql, parse


def run(*words: str) -> Run:
    options = parse(["run", *words])
    assert isinstance(options, Run)
    return options


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_without_options_the_view_is_written_each_second() -> None:
    options = run("--groups", "billing")
    assert (options.trigger, options.max_offsets) == (1_000, 50_000)
    assert (options.master, options.metrics_listen, options.conf) == (None, None, ())


def test_durations_addresses_and_settings_are_read() -> None:
    options = run(
        "--groups=a",
        "--trigger=500ms",
        "--metrics-listen=127.0.0.1:0",
        "--conf=a.b=c=d",
    )
    assert options.trigger == 500
    assert (options.metrics_listen, options.conf) == (("127.0.0.1", 0), (("a.b", "c=d"),))


def test_whose_events_are_read_is_told_in_words() -> None:
    assert run("--groups", "a, b").reads() == "the groups a, b"
    assert run("--pattern", "a.*").reads() == "all groups that match a.*"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run",), "one of the arguments --groups --pattern is required"),
        (("run", "--groups=a", "--pattern=b"), "not allowed with argument"),
        (("run", "--groups=,"), "name at least one group"),
        (("run", "--groups=a b"), "'a b-RETRY-EVENTS' is not a name for Kafka"),
        (("run", "--pattern=a)|(b"), "is not a regular expression"),
        (("run", "--pattern="), "an empty pattern matches no group"),
        (("run", "--groups=a", "--trigger=14"), "'14' is not a duration"),
        (("run", "--groups=a", "--trigger=0s"), "must be more than 0s"),
        (("run", "--groups=a", "--max-offsets=0"), "'0' is not a number from 1"),
        (("run", "--groups=a", "--metrics-listen=9404"), "'9404' is not HOST:PORT"),
        (("run", "--groups=a", "--conf=x"), "'x' is not KEY=VALUE"),
        (("sql", "--group=a"), "--query"),
    ],
)
def test_a_wrong_option_is_one_sentence(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
    error = refused(capsys, *words)
    assert says in error
    assert error.startswith("reconsume: ")
    assert error.count("\n") == 1


def test_a_query_may_begin_with_dashes() -> None:
    options = parse(["sql", "--query=-- a comment\nSELECT 1", "--group=a"])
    assert isinstance(options, Sql)
    assert options.query == "-- a comment\nSELECT 1"
