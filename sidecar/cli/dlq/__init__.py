"""`dlq`: dead letters looked at (`commands`), brought back (`back`, `edit`), put by and deleted (`keep`)."""
