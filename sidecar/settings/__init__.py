"""Configuration: one YAML file, then the environment, then `--set`, to one frozen and checked value.

Nothing is read at import. `load` is the only way in; it reports every fault together.
"""

from sidecar.settings.load import load, load_with_origins
from sidecar.settings.model import Settings

__all__ = ["Settings", "load", "load_with_origins"]
