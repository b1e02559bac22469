"""Parsers of strangers' bytes, fed what nobody would write: `make fuzz`."""
