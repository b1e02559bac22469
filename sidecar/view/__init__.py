"""The group's view: followed into SQLite (`follower`, `store`), asked (`query`, `reader`), read once (`snapshot`)."""
