"""`run`: the sidecar itself."""

from __future__ import annotations

import signal

from reconsume.sidecar.cli.config import token_files
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.modes import expect_sidecar
from reconsume.sidecar.start_signals import end_at_once


def run(options: Options) -> int:
    """Run the sidecar.

    It runs until SIGTERM or Ctrl-C; then it waits for what is out (drain_timeout), commits, and ends.

    \b
    Example:
      reconsume run -c reconsume.yaml
    """
    return run_configured(options)


def run_configured(options: Options, speed: int = 1) -> int:
    """Check the configuration and run the sidecar. `speed`: what the waits of retries are divided by."""
    signal.signal(signal.SIGTERM, end_at_once)  # until the loop drains at one: what is loaded till then takes a second
    from reconsume.sidecar.kafka.client_check import expect_clients, single_faults  # slow to import; --help needs none

    settings = load(options.config, options.sets, judge=single_faults)
    expect_sidecar(settings)
    expect_clients(settings.kafka)
    if absent := [
        f"{name} = {file}: is not there" for name, file in token_files(settings).items() if not file.exists()
    ]:
        raise ConfigError(absent)
    from reconsume.sidecar.runtime.run import (
        run as run_sidecar,  # a wrong configuration is reported before the Kafka client is loaded
    )

    return run_sidecar(settings, speed)
