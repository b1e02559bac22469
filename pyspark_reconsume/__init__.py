"""Where Spark finds the format `reconsume_levels` by itself: it imports each package whose name begins with `pyspark_`.

So the format is known in any session, from SQL and Scala too, and nobody registers it.
"""

import contextlib

# Where what the source needs is missing it is not offered. An error would hide the formats of all such packages.
with contextlib.suppress(ImportError):
    from reconsume.spark.consumer.source import LevelsSource as DefaultSource

__all__ = ["DefaultSource"]
