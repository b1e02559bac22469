"""The configuration of a command that talks to Kafka."""

from __future__ import annotations

from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.settings import Settings, load


def settings_for_kafka(options: Options) -> Settings:
    """Return the checked settings, of which every kind of Kafka client can be made. Raises ConfigError."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.kafka.client_check import expect_clients, single_faults

    settings = load(options.config, options.sets, judge=single_faults)
    expect_clients(settings.kafka)
    return settings
