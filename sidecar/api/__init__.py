"""The HTTP API (contract 12.8), one file per group of calls."""
