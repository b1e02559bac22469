"""`run`: the sidecar itself."""

from __future__ import annotations

import signal

from reconsume.sidecar.cli.config import token_files
from reconsume.sidecar.cli.terminal.kafka_settings import settings_of_all
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.modes import expect_sidecar
from reconsume.sidecar.start_signals import end_at_once


def run(options: Options) -> int:
    """Run the sidecar.

    It runs until SIGTERM or Ctrl-C; then it waits for what is out (drain_timeout), commits, and ends. With several -c
    it runs all their groups, with one API: the calls of each are below /groups/NAME.

    \b
    Examples:
      reconsume run -c reconsume.yaml
      reconsume run -c billing.yaml -c shipping.yaml
    """
    return run_configured(options)


def run_configured(options: Options, speed: int = 1) -> int:
    """Check the configuration and run the sidecar. `speed`: what the waits of retries are divided by."""
    signal.signal(signal.SIGTERM, end_at_once)  # until the loop drains at one: what is loaded till then takes a second
    from reconsume.sidecar.kafka.client_check import expect_clients, single_faults  # slow to import; --help needs none

    groups = settings_of_all(options, single_faults)
    for settings in groups:
        expect_sidecar(settings)
        expect_clients(settings.kafka)
    tokens = token_files(groups[0])  # the same in all groups
    if absent := [f"{name} = {file}: is not there" for name, file in tokens.items() if not file.exists()]:
        raise ConfigError(absent)
    from reconsume.sidecar.runtime.run import (
        run as run_sidecar,  # a wrong configuration is reported before the Kafka client is loaded
    )

    return run_sidecar(groups, speed)
