"""The sidecar with shorter waits, as `dev up --speed` starts it: `python -m … FILE SPEED`. No command offers it."""

from __future__ import annotations

import sys
from pathlib import Path

from reconsume.sidecar.cli.run import run_configured
from reconsume.sidecar.cli.terminal.exit_codes import exit_code
from reconsume.sidecar.cli.terminal.options import Options

if __name__ == "__main__":
    file, speed = sys.argv[1:]
    sys.exit(exit_code(lambda: run_configured(Options(configs=[Path(file)]), int(speed)), debug=False))
