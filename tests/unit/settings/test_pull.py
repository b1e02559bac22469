"""Pull mode's settings: what only a request to the service could honour is refused there, each with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar.settings import good, problems, write_good

PULL = ("deliver.mode=pull", "deliver.url=null")


def test_pull_mode_needs_no_url(tmp_path: Path) -> None:
    settings = good(tmp_path, *PULL, "pull.min_invisible=100ms")
    assert (settings.deliver.mode, settings.pull.min_invisible, settings.pull.max_leased) == ("pull", 100, 4_096)


@pytest.mark.parametrize(
    "setting",
    [
        "deliver.url=http://127.0.0.1:8080/",
        "deliver.health_url=http://127.0.0.1:8080/",
        "deliver.envelope=true",
        "deliver.content_type=text/csv",
        "deliver.forward_headers=[x-tenant]",
        "deliver.dead_letter_statuses=[422]",
        "deliver.batch.max_size=32",
        "deliver.concurrency=8",
        "deliver.timeout=5s",
        "deliver.outage_failures=null",
    ],
)
def test_what_only_a_request_could_honour_is_refused_in_pull_mode(tmp_path: Path, setting: str) -> None:
    (problem,) = problems(write_good(tmp_path), [*PULL, setting])
    assert problem.startswith(setting.partition("=")[0])
    assert "is for push mode; in pull mode the service calls the sidecar; leave it out" in problem
