"""The HTTP API (INTERFACE §3), one file per group of calls."""
