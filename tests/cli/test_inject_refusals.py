"""What `reconsume inject` refuses, each with one sentence that says where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_inject import DEPLOYMENT, POD, SERVICE, WISH, inject, workload


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("kind: [1\nx: 2\n", WISH, "stdin, line 2, column 2: `]` or a comma is missing before this"),
        (f"{SERVICE}---\na: b: c\n", WISH, "stdin, line 5, column 5: a `:` is inside a value"),
        ("", WISH, "stdin: holds nothing of Kubernetes"),
        ("a: \x07\n", WISH, "stdin, line 1, column 4: there is a character that cannot be printed\n"),
        ("- 1\n", WISH, "it has no kind"),
        (
            DEPLOYMENT.replace(POD, "      containers: none\n"),
            WISH,
            "deployment/billing: spec.template.spec.containers: must",
        ),
        (DEPLOYMENT, (), "group: is required"),
        (DEPLOYMENT, ("--group", "g"), "kafka.bootstrap.servers: is required"),
        (DEPLOYMENT, ("--group", "g"), "give --group, --topics, --bootstrap-servers, and --url or another --mode"),
        (
            DEPLOYMENT,
            ("--config-map", "x", "--url", "https://example.com/"),
            "deliver.url = https://example.com/: is not on loopback",
        ),
        (DEPLOYMENT, ("--config-map", "x", "--mode", "shove"), "deliver.mode = shove: must be push or pull or relay"),
        (DEPLOYMENT, ("--config-map", "x", "--mode", "spark"), "deliver.mode = spark: Spark queries consume the group"),
        (DEPLOYMENT, ("--config-map", "Not A Name"), "Not A Name: must be the name of a ConfigMap"),
        (DEPLOYMENT, ("--config-map", "x", "--topics", "{"), "topics"),
        (DEPLOYMENT, ("--config-map", "x", "--memory-limit", "much"), "memory-limit = much: must be like 256Mi"),
        (DEPLOYMENT, ("--config-map", "x", "--cpu-limit", "1Gi"), "cpu-limit = 1Gi: must be like 250m or 0.5"),
        (DEPLOYMENT, ("--config-map", "x", "--cpu-request", "1", "--cpu-limit", "500m"), "cpu-request = 1: is above"),
        (DEPLOYMENT, ("--config-map", "x", "--mesh", "consul"), "mesh = consul: must be istio or linkerd"),
        (
            DEPLOYMENT,
            ("--config-map", "x", "--kafka-ports", "all"),
            "kafka-ports = all: must be like 9092 or 9092,9093",
        ),
        (DEPLOYMENT, ("--config-map", "x", "--ip-family", "6"), "ip-family = 6: must be ipv4 or ipv6"),
        (DEPLOYMENT.replace("Seconds: 30", "Seconds: soon"), WISH, "must be a whole number of seconds"),
        (
            f"{DEPLOYMENT}      hostNetwork: true\n",
            WISH,
            "hostNetwork: the sidecar's API would be on",
        ),
        (
            DEPLOYMENT.replace("    metadata:\n      labels:\n", "    metadata:\n      labels: *x\n      y:\n"),
            WISH,
            "a value that begins with `*` refers to an anchor",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_place(text: str, words: tuple[str, ...], why: str) -> None:
    shown = inject(*words, stdin=text)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert shown.stderr.startswith("reconsume: configuration: stdin")
    assert why in shown.stderr
    assert "Traceback" not in shown.stderr


def test_all_faults_of_all_files_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [1\n")
    shown = inject("-f", tmp_path / "a.yaml", "-f", tmp_path / "b.yaml", *WISH)
    assert shown.exit_code == 78
    assert "a.yaml, line 2, column 1: a bracket is opened and not closed" in shown.stderr
    assert "b.yaml: cannot be read: No such file or directory" in shown.stderr


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_a_job_refuses_an_ordinary_container_which_would_never_end(kind: str) -> None:
    text = workload(kind, "batch/v1", {"spec": {"containers": [{"name": "x", "image": "x:1"}]}})
    shown = inject(*WISH, "--plain", stdin=text)
    assert shown.exit_code == 78
    assert "would keep them running" in shown.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [(("-i",), "stdin is none"), (("--remove", "--group", "x"), "leave out"), (("-o", "json"), "leave out -o")],
)
def test_options_that_do_not_go_together_are_wrong_usage(words: tuple[str, ...], why: str) -> None:
    shown = inject(*words, stdin=DEPLOYMENT)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert why in shown.stderr
