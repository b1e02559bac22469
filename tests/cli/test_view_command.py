"""`view run` and `view sql`: what is refused before anything starts, and a query over real topics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import uuid
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.cli.view import UNUSED
from reconsume.sidecar.settings import load
from reconsume.topics.events import State
from tests.support.kafka.broker import Broker
from tests.support.kafka.view_topics import create_view_topics, event, tell
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good

ROOT = Path(__file__).parents[2]


def config(folder: Path, bootstrap: str = "localhost:9", group: str = "g", **kafka: str) -> Path:
    file = folder / "reconsume.yaml"
    file.write_text(
        yaml.safe_dump(
            {"group": group, "kafka": {"bootstrap.servers": bootstrap, **kafka}, "view": {"source": "spark"}}
        )
    )
    return file


@pytest.fixture(scope="module")
def without_pyspark(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment of all installed packages but that one."""
    packages = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("pyspark"):
            (packages / entry.name).symlink_to(entry)
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"}


@pytest.mark.parametrize("words", [("run",), ("sql", "SELECT 1")], ids=" ".join)
def test_without_pyspark_it_says_what_to_install(
    words: tuple[str, ...], without_pyspark: dict[str, str], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-S",
        "-m",
        "sidecar",
        "view",
        *words,
        "-c",
        str(config(tmp_path)),
        "--set=view.source=spark",
    ]
    done = subprocess.run(command, env=without_pyspark, capture_output=True, text=True, timeout=60)
    hint = "pip install '.[spark]' in a clone of Reconsume's repository"
    sentence = f"setup: the view is a Spark job, and PySpark is not installed: {hint}"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"reconsume: {sentence}\n")


def test_the_job_itself_says_it_too(without_pyspark: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-S",
        "-m",
        "reconsume.spark",
        "run",
        "--groups=a",
        "--bootstrap=b:1",
    ]
    done = subprocess.run(command, env=without_pyspark, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    hint = "pip install '.[spark]' in a clone of Reconsume's repository"
    assert done.stderr == f"reconsume: PySpark is not installed: {hint}\n"


def test_every_property_that_java_cannot_be_told_is_named(tmp_path: Path) -> None:
    file = config(tmp_path, **{"ssl.cipher.suites": "x", "enable.ssl.certificate.verification": "false"})
    done = reconsume("view", "run", "-c", file)
    assert done.exit_code == 78
    named = {line.split(" ")[2] for line in done.stderr.splitlines()}
    assert named == {"kafka.ssl.cipher.suites", "kafka.enable.ssl.certificate.verification"}


def test_groups_and_a_pattern_are_two_answers_to_one_question(tmp_path: Path) -> None:
    done = reconsume("view", "run", "--groups", "a", "--pattern", "b", "-c", config(tmp_path))
    assert done.exit_code == 2
    assert "give one of them" in done.stderr


def test_a_wrong_duration_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    done = reconsume("view", "run", "--trigger", "14", "-c", config(tmp_path))
    assert done.exit_code == 2
    assert "'14' is not a duration" in done.stderr


def test_what_only_a_sidecar_needs_is_no_fault_of_the_view(tmp_path: Path) -> None:
    """Given a ladder for ordered records, which needs the order that the view does without."""
    own = ("deliver.order=key", "retry.ordered_ladder=[10s]", "retry.ordered_exhausted=park")
    good = load(write_good(tmp_path), own)
    assert load(write_good(tmp_path), (*own, *UNUSED)).group == good.group


@pytest.fixture(scope="module")
def told(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a group with two records in retry and one dead."""
    group = f"sql-{uuid.uuid4().hex[:8]}"
    create_view_topics(kafka.bootstrap, group)
    states = (State.WAITING_RETRY, State.WAITING_RETRY, State.DLQ)
    tell(kafka.bootstrap, [event(group, number, state) for number, state in enumerate(states)])
    return config(tmp_path_factory.mktemp("sql"), kafka.bootstrap, group)


@pytest.mark.long
def test_a_query_prints_its_rows_in_the_format_that_is_asked_for(told: Path) -> None:
    query = "SELECT state, count(*), count(*) FROM view GROUP BY state ORDER BY state"
    done = reconsume("view", "sql", query, "-o", "tsv", "-c", told)
    assert (done.exit_code, done.stderr) == (0, "from the events and Spark's view, by Spark\n")
    assert done.stdout.splitlines() == ["state\tcount(1)\tcount(1)_2", "DLQ\t1\t1", "WAITING_RETRY\t2\t2"]


@pytest.mark.long  # tests/cli/retries/test_events.py shows it without Spark
def test_a_wrong_query_is_one_sentence(told: Path) -> None:
    done = reconsume("view", "sql", "SELECT nothing FROM view", "-o", "jsonl", "-c", told)
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    fault = json.loads(line)
    assert fault["detail"].startswith("the query failed: [UNRESOLVED_COLUMN")
    assert "`nothing`" in fault["detail"]
    assert fault["exit"] == 1
