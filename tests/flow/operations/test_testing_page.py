"""docs/testing.md as its reader follows it: from an empty folder to green tests, in Python and in Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread

import pytest

from reconsume.sidecar.java.find_java import find_java
from tests.flow.operations.dev_up import SECONDS, usual_ports
from tests.flow.operations.test_demo import processes_of

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "testing"
PAGE = (ROOT / "docs" / "testing.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`, [^\n]*\n\n```\w+\n(.*?)^```", PAGE, re.M | re.S))
"""The files that the page has its reader save."""
LONGEST_CLASS = 100


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Runs of the tests beside each other take turns."""
    with usual_ports():
        yield


@pytest.fixture
def environ() -> dict[str, str]:
    """That of a reader whose environment has `reconsume`."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_page_leads_from_nothing_to_green_tests(tmp_path: Path, environ: dict[str, str]) -> None:
    for name, code in FILES.items():
        assert code == (EXAMPLES / name).read_text("utf-8"), f"{name} is in examples/testing as the page prints it"
        (tmp_path / name).write_text(code, "utf-8")
    assert set(FILES) == {"reconsume.yaml", "orders.py", "conftest.py", "test_orders.py"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=4 * SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.search(r"\$ pytest -q\n(.*?)```", PAGE, re.S)
    assert printed is not None
    without_time = [re.sub(r" in .*", "", text.strip()) for text in (printed[1], done.stdout)]
    assert without_time[0] == without_time[1]
    assert not processes_of(tmp_path)


@pytest.mark.long  # the fixture in Python is one of each run
def test_the_class_in_java_does_the_same(tmp_path: Path, environ: dict[str, str]) -> None:
    source = EXAMPLES / "ReconsumeDev.java"
    assert len(source.read_text("utf-8").splitlines()) <= LONGEST_CLASS
    javac = Path(find_java()).resolve().with_name("javac")
    if not javac.exists():
        pytest.skip("this Java has no compiler: a JDK is needed")
    (tmp_path / "reconsume.yaml").write_text(FILES["reconsume.yaml"], "utf-8")
    sample = re.search(r"<!-- java -->\n\n```java\n(.*?)```", PAGE, re.S)
    assert sample is not None
    with orders_service() as url:
        code = sample[1].replace("http://127.0.0.1:8080/events", url)
        begin = "import java.nio.file.Path;\nclass Main { public static void main(String[] words) throws Exception {\n"
        main = f"{begin}{code}}} }}\n"
        (tmp_path / "Main.java").write_text(main, "utf-8")
        subprocess.run([javac, "-d", ".", source, "Main.java"], cwd=tmp_path, check=True, timeout=SECONDS)
        run = [find_java(), "-cp", ".", "Main"]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not processes_of(tmp_path)


@contextmanager
def orders_service() -> Iterator[str]:
    """The page's service on a thread of its own; its URL."""
    spec = spec_from_file_location("orders", EXAMPLES / "orders.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    server: ThreadingHTTPServer = module.server()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/events"
    finally:
        server.shutdown()
        server.server_close()
