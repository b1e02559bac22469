"""A command that needs the group's policy loads what makes a policy, and no running sidecar."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS = ("reconsume.sidecar.", "reconsume.topics.", "reconsume.spark.")
COUNT = f"print(*sorted(name for name in sys.modules if name.startswith({OURS})))"
MOST = 70
"""Modules of ours; 39 when this was written, and 173 while the runtime built the policy."""


def loaded_by(line: str) -> list[str]:
    """The modules of ours that a new process has after one line."""
    program = f"import sys; {line}; {COUNT}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_the_policy_is_made_of_few_modules() -> None:
    assert 0 < len(loaded_by("from reconsume.sidecar.settings.policy import build_policy")) < MOST


@pytest.mark.parametrize("behind", ["reconsume.sidecar.dlq.dead_letters, reconsume.sidecar.kafka.client_check"])
def test_the_list_of_dead_letters_loads_nothing_of_a_running_sidecar(behind: str) -> None:
    modules = loaded_by(f"import reconsume.sidecar.cli, {behind}")
    assert "reconsume.sidecar.cli.dlq.commands" in modules
    assert [
        name for name in modules if name.startswith(("reconsume.sidecar.runtime", "reconsume.sidecar.delivery"))
    ] == []
