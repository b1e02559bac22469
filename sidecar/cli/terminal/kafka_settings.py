"""The configuration of a command that talks to Kafka."""

from __future__ import annotations

from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.load import FOR_MANY


def settings_for_kafka(options: Options) -> Settings:
    """Return the checked settings of one group, of which every kind of Kafka client can be made.

    In a file with `ui.groups` the group is that of `--group`, and its settings come from Kafka. Raises ConfigError,
    and BrokerError or ContractError where they cannot be found there.
    """
    settings = settings_for_groups(options)
    if options.group is None and settings.group:
        return settings
    if options.group is None:
        raise ConfigError([f"group: is required here; {FOR_MANY}"])
    if options.group == settings.group:
        return settings
    if not settings.ui.groups:
        raise ConfigError([f"--group {options.group}: the file is about {settings.group}; ui.groups may name others"])
    from reconsume.sidecar.groups.discovery import settings_of_group

    return settings_of_group(settings, options.group)


def settings_for_groups(options: Options) -> Settings:
    """Return the checked settings of a file that may name groups in `ui.groups` instead of one. Raises ConfigError."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.kafka.client_check import expect_clients, single_faults

    settings = load(options.config, options.sets, judge=single_faults, many=True)
    expect_clients(settings.kafka)
    return settings
