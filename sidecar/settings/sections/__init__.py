"""The sections of reconsume.yaml.

`api`, `deliver`, `pull`, `retry`, `ui` and `view` each hold the section of that name. `deliver` also holds the main
topics, and `telemetry` holds `tracing` and `log`. `kafka` checks the properties of its section; `kafka_secrets` reads
those that are in files.
"""
