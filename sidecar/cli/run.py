"""`run`: the sidecar itself."""

from __future__ import annotations

from sidecar.cli.terminal.options import Options
from sidecar.errors import ConfigError
from sidecar.settings import load


def run(options: Options) -> int:
    """Run the sidecar.

    It runs until SIGTERM or Ctrl-C; then it waits for what is out (drain_timeout), commits, and ends.

    \b
    Example:
      reconsume run -c reconsume.yaml
    """
    settings = load(options.config, options.sets)
    from sidecar.kafka.client_config import property_faults
    from sidecar.runtime.run import (
        run as run_sidecar,  # a wrong configuration is reported before the Kafka client is loaded
    )

    if faults := property_faults(settings.kafka):
        raise ConfigError(faults)
    return run_sidecar(settings)
