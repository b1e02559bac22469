"""Attempts as OpenTelemetry spans (the extra `otel`), chosen once at the start; without them nothing here is loaded.

choice.py   whether there is tracing at all
context.py  trace contexts in a record's headers
attempts.py the delivery around the delivery: a span for each attempt
export.py   where the spans go
"""
