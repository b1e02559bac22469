"""Java programs that the sidecar starts.

- `find_java` finds Java, `jars` downloads jars, `download_bar` shows the progress of a download
- `orphan_guard` ends Java programs when their parent process is gone
- `spark_job` runs the Spark job with the jars of `spark.lock`; `kafka_properties` translates the `kafka` section for it
"""
