"""`dlq`: dead letters listed (`commands`), redriven (`redrive`, `edit`), exported, imported and deleted (`archive`)."""
