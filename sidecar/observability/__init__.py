"""Logs, metrics and traces; nothing here decides anything."""
