"""Jobs on a cluster of two workers whose Python has nothing of Reconsume: an example as a consumer, and the view's job.

As docs/spark.md says it: the package goes to the executors as an archive, and the view's job is a file of three lines.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.topics.levels import SIX
from reconsume.topics.names import Kind
from tests.flow.view.standalone import Standalone
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.kafka.view_topics import view_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
SECONDS = 180.0
VIEW = "from reconsume.spark.job import main\n\nmain()\n"


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=SIX), also=(Kind.VIEW,))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path) as cluster:
        yield cluster


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def plain_python(folder: Path) -> Path:
    """A Python that has nothing but its standard library."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "plain")
    return folder / "plain" / "bin" / "python"


def archive(folder: Path) -> Path:
    """What executors of a consumer need, as an archive: this package as a wheel, and msgspec."""
    uv = (sys.executable, "-m", "uv")
    run(*uv, "build", "--wheel", "--quiet", "--out-dir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    needed = f"msgspec=={version('msgspec')}"
    run(
        *uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--target",
        folder / "deps",
        "--no-deps",
        wheel,
        needed,
    )
    run("tar", "-C", folder / "deps", "-czf", folder / "deps.tar.gz", ".")
    return folder / "deps.tar.gz"


def test_a_consumer_and_the_view_run_on_two_workers(
    kafka: Broker, group: GroupTopics, cluster: Standalone, tmp_path: Path
) -> None:
    jars = ",".join(map(str, fetch(lock_for(version("pyspark")))))
    plain, deps = plain_python(tmp_path), archive(tmp_path)
    produce(group.bootstrap, group.main, [Out(b'{"stock": 1}'), Out(b'{"stock": 0}'), Out(b"no JSON")])
    sent = ["--jars", jars, "--archives", f"{deps}#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps"]
    sent += ["--conf", f"spark.pyspark.python={plain}", "--conf", f"spark.pyspark.driver.python={sys.executable}"]
    # The driver here has pyarrow, and Spark 4.2 would call functions by it on executors that do not.
    sent += ["--conf", "spark.sql.execution.pythonUDF.arrow.enabled=false", "--conf", "spark.executor.memory=512m"]
    words = ["--group", group.group, "--topic", group.main, "--bootstrap", kafka.bootstrap]
    words += ["--checkpoint", str(tmp_path / "consumer")]
    job = cluster.submit("consumer", [*sent, str(ROOT / "examples" / "spark_relay.py"), *words], PYTHONPATH=str(ROOT))
    late = f"{group.group}-RETRY-5m"

    def carried_out() -> bool:
        assert job.poll() is None, cluster.log("consumer")[-4000:]
        return len(dump(group.bootstrap, late)) == len(dump(group.bootstrap, group.dlq)) == 1

    until(carried_out, SECONDS, "the verdicts are carried out")
    job.terminate()
    job.wait()
    assert [len(list(cluster.work(number).glob("app-*"))) for number in range(2)] == [1, 1], "both workers have worked"

    (tmp_path / "view.py").write_text(VIEW, "utf-8")
    words = ["run", "--groups", group.group, "--bootstrap", kafka.bootstrap]
    job = cluster.submit("view", [*sent, str(tmp_path / "view.py"), *words], PYTHONPATH=str(ROOT))

    def states() -> list[str]:
        assert job.poll() is None, cluster.log("view")[-4000:]
        return sorted(str(row["state"]) for row in view_of(group.bootstrap, group.group).values())

    until(lambda: states() == ["DLQ", "WAITING_RETRY"], SECONDS, "the view has both records")
