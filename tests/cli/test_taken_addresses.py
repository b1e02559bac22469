"""An address that another program has: the error names the setting from which it comes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60.0


@pytest.mark.parametrize("setting", ["api.listen", "api.probe_listen", "ui.listen"])
def test_a_sidecar_names_the_setting_of_an_address_that_is_taken(setting: str, tmp_path: Path) -> None:
    given = {"api.listen": "127.0.0.1:0", "api.probe_listen": "127.0.0.1:0", "ui.enabled": "true"}
    (tmp_path / "reconsume.yaml").write_text(
        "group: billing\ntopics: [orders]\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n"
        "deliver: {url: 'http://127.0.0.1:1/'}\nui: {listen: '127.0.0.1:0'}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        sets = [word for key, value in (given | {setting: place}).items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "reconsume.sidecar", "run", *sets],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on {place} ({setting}): Address already in use" in done.stderr
