"""Rules that a group's topics must keep, what is read to check them, and the facts in SQLite."""
