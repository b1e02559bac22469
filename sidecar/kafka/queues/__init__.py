"""The reader of a group's queue topics: partitions that are owned with their main partitions, outside the group."""
