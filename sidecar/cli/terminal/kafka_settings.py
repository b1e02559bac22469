"""The configuration of a command: of the one group that it is about, or of all groups of several `-c`."""

from __future__ import annotations

from dataclasses import replace

import typer

from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.hints import suggestion, use_file_of
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.load import FOR_MANY, Judge, Loaded, load
from reconsume.sidecar.settings.process_settings import load_groups


def no_judge(_properties: object) -> tuple[str, ...]:
    """Leave the properties of Kafka to those who make clients of them."""
    return ()


def loaded_groups(options: Options, judge: Judge = no_judge) -> tuple[Loaded, ...]:
    """Return the checked settings of each `-c`, or that of `--group` alone. Raises ConfigError, and BadParameter if
    there is no such group."""
    every = load_groups(options.configs, options.sets, judge=judge)
    if not options.has_several_configs:
        return every
    groups = [one.settings.group for one in every]
    use_file_of(dict(zip(groups, options.configs, strict=True)))
    if options.group is None:
        return every
    if options.group not in groups:
        question = suggestion(options.group, groups)
        text = f"--group {options.group}: -c names {', '.join(groups)}{f'; {question}' if question else ''}"
        raise typer.BadParameter(text)
    return (every[groups.index(options.group)],)


def settings_of_all(options: Options, judge: Judge = no_judge) -> tuple[Settings, ...]:
    """Return the same for a command that works without Kafka. Raises as `loaded_groups`, and ConfigError for a file
    that names groups in `ui.groups` instead of one."""
    every = tuple(one.settings for one in loaded_groups(options, judge))
    if not all(settings.group for settings in every):
        raise ConfigError([f"group: is required here; {FOR_MANY}"])
    return every


def settings_of_one(options: Options, judge: Judge = no_judge) -> Settings:
    """Return the settings of the only group, or of that of `--group` among several `-c`. Raises as `settings_of_all`,
    and BadParameter if `--group` is missing."""
    every = settings_of_all(options, judge)
    if len(every) > 1:
        groups = ", ".join(settings.group for settings in every)
        raise typer.BadParameter(f"-c names the groups {groups}, and this is about one: add --group NAME")
    return every[0]


def settings_for_kafka(options: Options) -> Settings:
    """Return the checked settings of one group, of which every kind of Kafka client can be made.

    In a file with `ui.groups` the group is that of `--group`, and its settings come from Kafka. Raises ConfigError,
    and BrokerError or ContractError where they cannot be found there.
    """
    if options.has_several_configs:
        # The Kafka client is slow to import, and --help needs none.
        from reconsume.sidecar.kafka.client_check import expect_clients, single_faults

        settings = settings_of_one(options, single_faults)
        expect_clients(settings.kafka)
        return settings
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
    """Return the checked settings of a file that may name groups in `ui.groups` instead of one.

    Of several `-c`, or of a file with one group, `ui.groups` has their names. Raises ConfigError.
    """
    from reconsume.sidecar.kafka.client_check import expect_clients, single_faults

    if not options.has_several_configs:
        settings = load(options.config, options.sets, judge=single_faults, many=True)
    else:
        every = settings_of_all(options, single_faults)
        settings = named_together(every)
    expect_clients(settings.kafka)
    return settings


def named_together(every: tuple[Settings, ...]) -> Settings:
    """Return settings whose `ui.groups` names these groups. Raises ConfigError if they are not of one Kafka."""
    first = every[0]
    if other := next((one for one in every if one.kafka != first.kafka), None):
        raise ConfigError([f"kafka: {first.group} and {other.group} differ, and this looks at one Kafka: use one -c"])
    return replace(first, ui=replace(first.ui, groups=tuple(one.group for one in every)))
