"""Tables of a lakehouse: names, columns and the statement. `tests/flow/view/test_lake_tables.py` writes real ones."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from reconsume.spark import tables, view
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
    assert tables.quoted(name) == meant
    parser = spark._jsparkSession.sessionState().sqlParser()
    assert parser.parsePlan(tables.merge_sql(meant)).nodeName() == "MergeIntoTable"


@pytest.mark.parametrize("name", ["", ".", "a..b", "a.", ".a", "`a", "a`b", "a.`b`c", "``"])
def test_what_is_no_name_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a table"):
        tables.merge_into(spark, name)


def test_a_table_that_is_created_has_the_columns_of_the_view(spark: SparkSession) -> None:
    rows = view.newest(view.view(view.events(batch(spark, written([EVENT]))).good))
    named = StructType.fromDDL(tables.columns_ddl())
    assert named.simpleString() == rows.schema.simpleString()


def test_a_missing_table_or_column_is_named_before_the_first_batch(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="no_such_table"):
        tables.merge_into(spark, "no_such_table")
    spark.range(1).selectExpr("'a' AS id", "'b' AS `group`", "1 AS more").createOrReplaceTempView("narrow")
    with pytest.raises(ValueError, match="the table narrow lacks the columns at, cycle, due, "):
        tables.merge_into(spark, "narrow")
