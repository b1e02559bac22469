"""Tables of a lakehouse: names, columns and the statement. `tests/flow/view/test_lake_tables.py` writes real ones."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from reconsume.spark import lake, schema, versions, view
from tests.spark.frames import batch
from tests.support.event_histories import EVENT, written

NAMES = {
    "retries": "`retries`",
    "lake.db.retries": "`lake`.`db`.`retries`",
    "delta.`/var/lib/re.tries`": "`delta`.`/var/lib/re.tries`",
    "`a``b`.c": "`a``b`.`c`",
    "a; DROP TABLE b": "`a; DROP TABLE b`",
}


@pytest.mark.parametrize(("name", "meant"), NAMES.items())
def test_a_name_is_a_name_and_never_code(spark: SparkSession, name: str, meant: str) -> None:
    assert lake.quoted(name) == meant
    parser = spark._jsparkSession.sessionState().sqlParser()
    assert parser.parsePlan(lake.merge_sql(meant, view.VALUE)).nodeName() == "MergeIntoTable"


@pytest.mark.parametrize("name", ["", ".", "a..b", "a.", ".a", "`a", "a`b", "a.`b`c", "``"])
def test_what_is_no_name_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a table"):
        lake.merge_into(spark, name)


def test_a_table_that_is_created_has_the_columns_of_the_view(spark: SparkSession) -> None:
    rows = schema.with_timestamps(view.newest(view.view(view.events(batch(spark, written([EVENT]))).good)))
    named = StructType.fromDDL(lake.columns_ddl()).simpleString()
    assert named == rows.schema.simpleString()
    by_day = StructType.fromDDL(lake.columns_ddl(is_partitioned=True)).simpleString()
    assert by_day == f"{named.removesuffix('>')},day:date>"


def test_a_missing_table_or_column_is_named_before_the_first_batch(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="no_such_table"):
        lake.merge_into(spark, "no_such_table")
    spark.range(1).selectExpr("'a' AS id", "'b' AS `group`", "1 AS more").createOrReplaceTempView("narrow")
    with pytest.raises(ValueError, match="the table narrow lacks the columns at, cycle, due, "):
        lake.merge_into(spark, "narrow")


@pytest.mark.parametrize(("pyspark", "using"), [("4.3.0", "delta"), ("4.3.0", "iceberg"), ("4.2.1", "iceberg")])
def test_a_format_without_a_release_for_this_spark_is_refused_with_what_works(pyspark: str, using: str) -> None:
    works = {"delta": "PySpark 4.2 with io.delta:delta-spark_4.2_2.13:4.4.0", "iceberg": "PySpark 4.0 with org.apache"}
    with pytest.raises(ValueError, match=f"no release of {using} for Spark {pyspark}; what works: ") as refused:
        versions.check_pair(pyspark, using, {})
    assert works[using] in str(refused.value)
    versions.check_pair(pyspark, using, {"DATABRICKS_RUNTIME_VERSION": "19.1"})


@pytest.mark.parametrize(
    ("pyspark", "using"), [("4.2.1", "delta"), ("4.0.5", "iceberg"), ("4.2.1", "csv"), ("5.0.0", "delta")]
)
def test_no_other_pair_is_refused(pyspark: str, using: str) -> None:
    versions.check_pair(pyspark, using, {})


def test_a_table_by_another_column_than_the_day_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="partitioned by day or not at all, and partition_by is 'state'"):
        lake.merge_into(spark, "retries", partition_by="state")


def test_iceberg_is_refused_before_spark_looks_for_its_catalog(spark: SparkSession) -> None:
    if not spark.version.startswith("4.2"):
        pytest.skip("another Spark, for which Iceberg may have a release")
    with pytest.raises(ValueError, match="no release of iceberg"):
        lake.merge_into(spark, "lake.db.retries", using="iceberg")
