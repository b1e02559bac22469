"""Each release of Spark that is supported is the same in the page, the extras, the locks of jars and `make compat`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.jars import read_lock
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.spark.versions import FORMATS, PAIRS, Releases

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
RELEASES = list(PAIRS.values())


def locked(lock: Path, artifact: str) -> set[str]:
    """The coordinates of the jars of a lock whose artifact begins so."""
    return {str(jar) for jar in read_lock(lock) if jar.artifact.startswith(artifact)}


def pyspark_of(extra: str) -> Requirement:
    """What an extra says of PySpark."""
    (found,) = (Requirement(text) for text in EXTRAS[extra] if text.startswith("pyspark"))
    return found


def version(jar: str | None) -> str:
    """The version of a jar, as the page has it."""
    return jar.rpartition(":")[2] if jar else "–"


def test_the_page_has_the_table() -> None:
    rows = [tuple(row.split(" | ")) for row in re.findall(r"^\| (4\..*) \|$", PAGE, re.MULTILINE)]
    assert rows == [(r.pyspark, r.connector, version(r.delta), version(r.iceberg), r.java) for r in RELEASES]


@pytest.mark.parametrize("minor", PAIRS)
def test_each_release_of_spark_is_named_by_its_first_two_numbers(minor: str) -> None:
    assert PAIRS[minor].pyspark.startswith(f"{minor}.")


@pytest.mark.parametrize("release", RELEASES)
def test_the_connector_is_the_one_that_is_locked(release: Releases) -> None:
    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{release.connector}"
    assert locked(lock_for(release.pyspark), "spark-sql-kafka") == {connector}


@pytest.mark.parametrize("minor", PAIRS)
@pytest.mark.parametrize("table_format", FORMATS)
def test_each_format_is_the_one_that_is_tried(minor: str, table_format: str) -> None:
    lock = ROOT / "tests" / "flow" / "view" / f"{table_format}-{minor}.lock"
    tried = locked(lock, f"{table_format}-spark") if lock.exists() else set()
    assert tried == {getattr(PAIRS[minor], table_format)} - {None}


def test_the_extra_spark_has_one_release_with_all_but_iceberg_and_spark_any_has_all() -> None:
    (usual,) = (release for release in RELEASES if release.pyspark in pyspark_of("spark").specifier)
    assert usual.delta is not None
    assert f"spark-sql-kafka-0-10_2.13:{usual.connector}" in PAGE
    assert usual.delta in PAGE
    assert all(release.pyspark in pyspark_of("spark-any").specifier for release in RELEASES)
    same = [{text for text in EXTRAS[extra] if not text.startswith("pyspark")} for extra in ("spark", "spark-any")]
    assert same[0] == same[1]


def test_a_release_that_is_left_out_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match=r"PySpark 4\.1\.4 is not supported: .*SPARK-55271"):
        lock_for("4.1.4")
    assert "4.1.4" not in pyspark_of("spark-any").specifier


def test_compat_tries_all_but_the_release_of_the_tests() -> None:
    runs = re.search(r"^SPARK_RUNS \?= (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert runs is not None
    others = [release.pyspark for release in RELEASES if release.pyspark not in pyspark_of("spark").specifier]
    assert runs[1].split() == others
