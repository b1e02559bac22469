"""The group's view: copied into SQLite by `follower`, queried through `query`, read once by `snapshot`."""
