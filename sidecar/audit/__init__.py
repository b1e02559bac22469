"""Audit a group: the rules that its topics must keep, the reading of the topics, and the facts in SQLite."""
