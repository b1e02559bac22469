"""Attempts as OpenTelemetry spans (the extra `otel`), chosen once at the start.

Without tracing nothing of OpenTelemetry is loaded.

  setup.py    whether there is tracing
  context.py  trace contexts in a record's headers
  spans.py    a delivery around the delivery: a span for each attempt
  export.py   where the spans go
"""
