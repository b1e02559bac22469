"""The group's view: followed into SQLite (`topic`, `store`), asked (`query`, `reading`), looked at once (`look`)."""
