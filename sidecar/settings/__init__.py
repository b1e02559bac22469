"""The configuration: one YAML file, then the environment, then `--set`, merged into one frozen and checked value.

`load` is the only entry point. It reports all faults together, and nothing is read at import.

- values: `values` (kinds), `addresses` (forms), `sections`, `model` (the whole), `fields` (the tree as data)
- reading: `layers` merges the sources, `yaml_text` and `yaml_bounds` parse YAML, `load` does all steps
- checking: `checks` (rules between settings), `faults` (sentences), `masks` (hides secrets)
- uses: `reference` builds the reference page, `group_policy` lays the group's policy over a configuration
"""

from reconsume.sidecar.settings.load import load, load_with_origins
from reconsume.sidecar.settings.model import Settings

__all__ = ["Settings", "load", "load_with_origins"]
