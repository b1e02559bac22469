"""An API that is called by other pods: by the names that `api.hosts` lists, and by no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.runtime.servers import GroupApi, build_servers
from tests.support.service.service import free_port
from tests.support.sidecar.api_calls import METRICS, call
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.running_api import Loop, Operation
from tests.support.sidecar.settings import good, write_good

NAMES = "api.hosts=[billing.shop.svc, BILLING]"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("billing.shop.svc:8471", 200),
        ("Billing.Shop.SVC", 200),
        ("billing", 200),
        ("localhost", 200),
        ("0.0.0.0", 200),
        ("shop.svc", 421),
        ("billing.shop.svc.evil.example", 421),
        ("10.0.0.7:8471", 421),
    ],
)
def test_outside_loopback_a_call_needs_a_listed_name_and_a_token(tmp_path: Path, host: str, status: int) -> None:
    """Given `api.listen: 0.0.0.0`, which answered 421 to every real name."""
    (tmp_path / "token").write_text("a-secret-long-enough\n", encoding="utf-8")
    port = free_port()
    sets = (f"api.listen=0.0.0.0:{port}", f"api.token_file={tmp_path / 'token'}", "api.probe_listen=null", NAMES)
    sidecar = Operation()
    [server] = build_servers([GroupApi(good(tmp_path, *sets), sidecar.status)], sidecar, lambda: METRICS)
    loop = Loop()
    try:
        loop.run(server.start)
        found = call(port, "GET", "/status", {"Authorization": "Bearer a-secret-long-enough"}, host=host)
        assert found.status == status
        assert call(port, "GET", "/status", host=host).status == (401 if status == 200 else 421)
    finally:
        loop.run(server.stop)
        loop.close()


@pytest.mark.parametrize(("names", "warns"), [((), True), (("--set", NAMES), False)])
def test_config_check_says_that_calls_by_name_are_refused(tmp_path: Path, names: tuple[str, ...], warns: bool) -> None:
    (tmp_path / "token").write_text("a-secret-long-enough\n", encoding="utf-8")
    sets = ("--set", "api.listen=0.0.0.0:8471", "--set", f"api.token_file={tmp_path / 'token'}", *names)
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets)
    assert shown.exit_code == 0
    assert ("api.hosts names no host: calls by any other name get 421" in shown.stderr) == warns
