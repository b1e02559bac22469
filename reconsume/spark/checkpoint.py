"""How a checkpoint on a local disk is written. The names of `spark.checkpoint`."""

from reconsume.spark.checkpoint import write_plainly

__all__ = ["write_plainly"]
