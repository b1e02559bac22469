"""The configuration: one YAML file, then the environment, then `--set`, merged into one frozen and checked value.

`load` is the only entry point. It reports all faults together, and nothing is read at import.

- `table`: the kinds of values, and what a row of the table of settings has
- the rows: `model` (top level), `deliver`, `sections`, `kafka`; `addresses` has the forms of URLs and listeners
- `load`: merges the sources, reads them by the table, checks; `yaml_text` parses YAML, `checks` has the rules between
  settings, `modes` which of them have no effect in which mode, `faults` makes sentences and hides secrets
- uses: `reference` (schema and page), `group_policy` (the group's policy over a configuration), `policy` (what the core
  gets)
"""

from reconsume.sidecar.settings.load import load, load_with_origins
from reconsume.sidecar.settings.model import Settings

__all__ = ["Settings", "load", "load_with_origins"]
