"""The filter by the topics that exist, as Spark compiles it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from reconsume.spark.job.run import SETTINGS
from reconsume.spark.job.targets import deliverable

THRESHOLD = "spark.sql.optimizer.inSetConversionThreshold"


def test_the_code_that_spark_generates_is_the_same_for_any_number_of_topics(spark: SparkSession) -> None:
    """Else Java compiles it anew as a group comes."""
    before = spark.conf.get(THRESHOLD)
    spark.conf.set(THRESHOLD, SETTINGS[THRESHOLD])
    try:
        assert generated_code(spark, 2) == generated_code(spark, 4) == generated_code(spark, 40)
    finally:
        spark.conf.set(THRESHOLD, str(before))


def generated_code(spark: SparkSession, topics: int) -> str:
    records = spark.range(1).selectExpr("id || '-RETRY-VIEW' AS topic")
    frame = deliverable(records, [f"{number}-RETRY-VIEW" for number in range(topics)])
    stages = frame._jdf.queryExecution().debug().codegenToSeq()
    assert stages.size()
    return "\n".join(str(stages.apply(number)._2()) for number in range(stages.size()))
