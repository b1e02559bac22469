"""`reconsume inject`: every kind of manifest, what it says, what stays as it was, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from reconsume.sidecar.deploy.annotations import ADDED_GRACE, LABEL, SidecarAnnotations, annotation
from reconsume.sidecar.deploy.container import container, image
from tests.support.sidecar.cli import reconsume

POD = """\
      containers:
        - name: billing
          image: "billing:1.0"   # ours
"""
DEPLOYMENT = f"""\
# The billing service
apiVersion: apps/v1
kind: Deployment
metadata:
  name: billing   # and nothing else
spec:
  replicas: 3
  selector: {{matchLabels: {{app: billing}}}}
  template:
    metadata:
      labels:
        app: billing
    spec:
{POD}      # half a minute is enough
      terminationGracePeriodSeconds: 30
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: billing}   # no workload\n"
URL = "http://127.0.0.1:8080/events"
EMPTY = {"name": "reconsume-no-token", "emptyDir": {}}
"""What lies over the service account's token in the sidecar."""
WISH = ("--config-map", "billing", "--url", URL)


def inject(*words: str | Path, stdin: str | None = None) -> Result:
    files = () if "-f" in words else ("-f", "-")
    return reconsume("inject", *files, *words, stdin=stdin)


def changed(text: str, *words: str) -> str:
    shown = inject(*words, stdin=text)
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


def template(document: Any) -> Any:
    return document["spec"]["template"]


def sidecar(pod: Any, part: str = "initContainers") -> Any:
    (found,) = (one for one in pod["spec"][part] if one["name"] == "reconsume")
    return found


def variables(pod: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in sidecar(pod)["env"] if "value" in one}


def workload(kind: str, api: str, pod: Any) -> str:
    spec: Any = {"template": pod}
    if kind == "CronJob":
        spec = {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}
    body = {"spec": spec} if kind != "Pod" else pod
    return yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": {"name": "billing"}, **body}, sort_keys=False)


KINDS = {
    "Deployment": ("apps/v1", lambda it: it["spec"]["template"]),
    "StatefulSet": ("apps/v1", lambda it: it["spec"]["template"]),
    "DaemonSet": ("apps/v1", lambda it: it["spec"]["template"]),
    "ReplicaSet": ("apps/v1", lambda it: it["spec"]["template"]),
    "Rollout": ("argoproj.io/v1alpha1", lambda it: it["spec"]["template"]),
    "Job": ("batch/v1", lambda it: it["spec"]["template"]),
    "CronJob": ("batch/v1", lambda it: it["spec"]["jobTemplate"]["spec"]["template"]),
    "Pod": ("v1", lambda it: it),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gets_the_same_sidecar(kind: str) -> None:
    api, pod_of = KINDS[kind]
    text = workload(kind, api, {"spec": {"containers": [{"name": "billing", "image": "billing:1.0"}]}})
    pod = pod_of(yaml.safe_load(changed(text, *WISH)))
    assert sidecar(pod) == container(SidecarAnnotations(config_map="billing", url=URL), 40)
    config = {"name": "reconsume-config", "configMap": {"name": "billing"}}
    assert pod["spec"]["volumes"] == [config, EMPTY]
    assert pod["metadata"]["labels"][LABEL] == "true"
    options = {annotation("config_map"): "billing", annotation("url"): URL}
    assert pod["metadata"]["annotations"] == {**options, ADDED_GRACE: "40"}


def test_comments_order_and_quotes_stay_and_only_lines_are_added() -> None:
    """Every line of before is there, in its order."""
    after = changed(DEPLOYMENT, *WISH).splitlines()
    remaining = iter(after)
    assert all(line in remaining for line in DEPLOYMENT.splitlines())
    assert len(after) > len(DEPLOYMENT.splitlines()) + 40


def test_a_second_run_needs_no_options_and_changes_no_byte() -> None:
    once = changed(DEPLOYMENT, *WISH)
    shown = inject(stdin=once)
    assert (shown.stdout, shown.stderr) == (once, "deployment/billing: unchanged\n")
    assert changed(once, *WISH) == once


def test_another_option_and_an_edited_annotation_bring_it_up_to_date() -> None:
    once = changed(DEPLOYMENT, *WISH)
    other = inject("--url", "http://127.0.0.1:9090/", "--image", "mirror/reconsume:2", stdin=once)
    assert other.stderr == "deployment/billing: sidecar updated\n"
    pod = template(yaml.safe_load(other.stdout))
    assert (variables(pod)["RECONSUME_DELIVER__URL"], sidecar(pod)["image"]) == (
        "http://127.0.0.1:9090/",
        "mirror/reconsume:2",
    )
    edited = once.replace(f"reconsume.io/url: {URL}", "reconsume.io/url: http://127.0.0.1:7070/")
    assert edited != once
    assert variables(template(yaml.safe_load(changed(edited))))["RECONSUME_DELIVER__URL"] == "http://127.0.0.1:7070/"


def test_an_empty_value_takes_a_wish_back() -> None:
    pod = template(yaml.safe_load(changed(changed(DEPLOYMENT, *WISH), "--url", "")))
    assert pod["metadata"]["annotations"] == {annotation("config_map"): "billing"}
    assert "RECONSUME_DELIVER__URL" not in variables(pod)


def test_what_was_put_in_can_be_taken_out_without_a_trace() -> None:
    shown = inject("--remove", stdin=changed(DEPLOYMENT, *WISH, "--secrets", "billing-user"))
    assert (shown.stdout, shown.stderr) == (DEPLOYMENT, "deployment/billing: sidecar removed\n")


def test_a_list_and_many_documents_are_one_file_with_all_else_passed_on() -> None:
    items = [yaml.safe_load(text) for text in (DEPLOYMENT, SERVICE)]
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    text = f"{SERVICE}---\n{DEPLOYMENT}---\n# nothing here\n---\n{listed}"
    shown = inject(*WISH, "--workload", "deployment/billing", "--many", stdin=text)
    assert shown.stderr.splitlines() == [
        "service/billing: passed over",
        "deployment/billing: sidecar added",
        "deployment/billing: sidecar added",
        "service/billing: passed over",
    ]
    first, second, nothing, third = yaml.safe_load_all(shown.stdout)
    assert (first, nothing) == (items[1], None)
    assert template(second) == template(third["items"][0])
    assert third["items"][1] == items[1]
    assert shown.stdout.startswith(f"{SERVICE}---\n# The billing service\n")


def test_json_stays_json() -> None:
    text = json.dumps(yaml.safe_load(DEPLOYMENT), indent=2)
    pod = template(json.loads(changed(text, *WISH)))
    assert sidecar(pod) == container(SidecarAnnotations(config_map="billing", url=URL), 30)


def test_without_a_config_map_the_options_say_all() -> None:
    words = [
        "--group",
        "billing",
        "--topics",
        "orders, invoices",
        "--mode",
        "pull",
        "--bootstrap-servers",
        "k:9092",
    ]
    pod = template(yaml.safe_load(changed(DEPLOYMENT, *words)))
    assert sidecar(pod)["args"] == ["run"]
    assert pod["spec"]["volumes"] == [EMPTY]
    assert variables(pod) == {
        "RECONSUME_GROUP": "billing",
        "RECONSUME_TOPICS": "[orders, invoices]",
        "RECONSUME_DELIVER__MODE": "pull",
        "RECONSUME_KAFKA__BOOTSTRAP_SERVERS": "k:9092",
        "RECONSUME_DRAIN_TIMEOUT": "25s",
    }


def test_the_drain_follows_the_pods_time_to_end() -> None:
    text = DEPLOYMENT.replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 90")
    assert variables(template(yaml.safe_load(changed(text, *WISH))))["RECONSUME_DRAIN_TIMEOUT"] == "85s"


def test_a_pod_that_sets_no_time_to_end_gets_forty_seconds_and_gives_them_back() -> None:
    text = DEPLOYMENT.replace("      # half a minute is enough\n      terminationGracePeriodSeconds: 30\n", "")
    added = changed(text, *WISH)
    pod = template(yaml.safe_load(added))
    assert (pod["spec"]["terminationGracePeriodSeconds"], variables(pod)["RECONSUME_DRAIN_TIMEOUT"]) == (40, "35s")
    assert changed(added, *WISH) == added
    assert yaml.safe_load(inject("--remove", stdin=added).stdout) == yaml.safe_load(text)
    longer = added.replace("terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 60")
    kept = template(yaml.safe_load(inject("--remove", stdin=longer).stdout))
    assert kept["spec"]["terminationGracePeriodSeconds"] == 60


@pytest.mark.parametrize("seconds", [30, 40, 90])
def test_a_time_to_end_that_the_pod_sets_is_never_changed(seconds: int) -> None:
    text = DEPLOYMENT.replace("terminationGracePeriodSeconds: 30", f"terminationGracePeriodSeconds: {seconds}")
    added = changed(text, *WISH)
    assert template(yaml.safe_load(added))["spec"]["terminationGracePeriodSeconds"] == seconds
    assert inject("--remove", stdin=added).stdout == text


def test_a_plain_container_stands_beside_the_service_and_native_brings_it_back() -> None:
    plain = changed(DEPLOYMENT, *WISH, "--plain")
    pod = template(yaml.safe_load(plain))
    assert "restartPolicy" not in sidecar(pod, "containers")
    assert "initContainers" not in pod["spec"]
    assert changed(plain) == plain
    native = template(yaml.safe_load(changed(plain, "--native")))
    assert [one["name"] for one in native["spec"]["containers"]] == ["billing"]
    assert sidecar(native)["restartPolicy"] == "Always"


def test_what_the_pod_had_stays_and_the_sidecar_comes_before_its_init_containers() -> None:
    extra = "      initContainers:\n        - {name: migration, image: x:1}\n      volumes: [{name: cache}]\n"
    pod = template(yaml.safe_load(changed(DEPLOYMENT + extra, *WISH, "--secrets", "user,kafka.ca")))
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["reconsume", "migration"]
    names = ["cache", "reconsume-config", "reconsume-secret-user", "reconsume-secret-kafka-ca", EMPTY["name"]]
    assert [one["name"] for one in pod["spec"]["volumes"]] == names
    mounts = {one["name"]: one["mountPath"] for one in sidecar(pod)["volumeMounts"]}
    assert mounts["reconsume-secret-kafka-ca"] == "/etc/reconsume-secrets/kafka.ca"


def test_secrets_whose_volumes_would_have_one_name_are_refused_and_one_secret_twice_is_one() -> None:
    """Given a name with a dot and one with a hyphen, then neither is left out in silence."""
    shown = inject(*WISH, "--secrets", "bank.key,bank-key", stdin=DEPLOYMENT)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "bank-key and bank.key would be one volume" in shown.stderr
    pod = template(yaml.safe_load(changed(DEPLOYMENT, *WISH, "--secrets", "user,user")))
    assert [one["name"] for one in pod["spec"]["volumes"]].count("reconsume-secret-user") == 1


def test_the_image_is_of_this_version_unless_it_is_named() -> None:
    assert sidecar(template(yaml.safe_load(changed(DEPLOYMENT, *WISH))))["image"] == image()


def test_files_are_written_in_place_with_their_mode_or_not_at_all(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(DEPLOYMENT)
    good.chmod(0o640)
    bad.write_text("a: [1\n")
    refused = inject("-f", good, "-f", bad, "-i", *WISH)
    assert (refused.exit_code, good.read_text()) == (78, DEPLOYMENT)
    shown = inject("-f", good, "-i", *WISH)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert good.read_text() == changed(DEPLOYMENT, *WISH)
    assert good.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    files[0].write_text(SERVICE.rstrip("\n"))
    files[1].write_text(DEPLOYMENT)
    shown = inject("-f", files[0], "-f", files[1], *WISH)
    assert [one["kind"] for one in yaml.safe_load_all(shown.stdout)] == ["Service", "Deployment"]


def test_another_thing_of_the_same_name_is_no_workload() -> None:
    """Given a Deployment of another API group, then it stays as it is: its form is not known."""
    text = DEPLOYMENT.replace("apps/v1", "example.com/v1")
    shown = inject(*WISH, stdin=text)
    assert (shown.exit_code, shown.stdout) == (3, text)
    assert "example.com/v1 Deployment is not a kind that is known" in shown.stderr


def test_several_config_maps_are_several_groups_each_with_a_folder() -> None:
    pod = template(yaml.safe_load(changed(DEPLOYMENT, "--config-map", "billing,shipping.v2")))
    files = ["-c", "/etc/reconsume/billing/reconsume.yaml", "-c", "/etc/reconsume/shipping.v2/reconsume.yaml"]
    assert sidecar(pod)["args"] == ["run", *files]
    assert sidecar(pod)["lifecycle"]["preStop"]["exec"]["command"] == ["reconsume", "drain", *files]
    assert variables(pod).keys() == {"RECONSUME_DRAIN_TIMEOUT"}, "it is a setting of the process"
    assert pod["spec"]["volumes"] == [
        {"name": "reconsume-config-billing", "configMap": {"name": "billing"}},
        {"name": "reconsume-config-shipping-v2", "configMap": {"name": "shipping.v2"}},
        EMPTY,
    ]
    resources = sidecar(pod)["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == ("101Mi", "256Mi")
    five = template(yaml.safe_load(changed(DEPLOYMENT, "--config-map", "a,b,c,d,e")))
    assert sidecar(five)["resources"]["limits"]["memory"] == "384Mi"


def test_several_config_maps_are_taken_out_again_without_a_trace() -> None:
    assert changed(changed(DEPLOYMENT, "--config-map", "billing,shipping"), "--remove") == DEPLOYMENT


def test_an_option_of_one_group_beside_several_config_maps_is_refused() -> None:
    shown = inject("--config-map", "billing,shipping", "--url", URL, stdin=DEPLOYMENT)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "reconsume.io/url is of one group, and reconsume.io/config-map names several" in shown.stderr


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--config-map", "billing"), ("--config-map", "shipping")),
        (("--config-map", "billing"), ("--config-map", "billing,shipping")),
        (("--config-map", "billing,shipping"), ("--config-map", "billing")),
        (WISH, ("--group", "shipping")),
    ],
)
def test_a_sidecar_that_is_there_gets_other_groups_only_by_replace(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    once = changed(DEPLOYMENT, *first)
    refused = inject(*second, stdin=once)
    assert (refused.exit_code, refused.stdout) == (78, "")
    assert "nobody would consume what it leaves: --replace does that" in refused.stderr
    replaced = changed(once, *second, "--replace")
    assert replaced != once
    assert changed(replaced) == replaced


def test_the_refusal_says_how_one_sidecar_has_both_groups() -> None:
    refused = inject("--config-map", "shipping", stdin=changed(DEPLOYMENT, "--config-map", "billing"))
    assert "one sidecar has several groups: --config-map billing,shipping" in refused.stderr


def test_the_order_of_config_maps_and_other_options_change_no_groups() -> None:
    once = changed(DEPLOYMENT, "--config-map", "billing,shipping")
    assert "shipping, billing" in changed(once, "--config-map", "shipping, billing", "--memory-limit", "1Gi")


def test_one_group_of_several_in_two_workloads_needs_many() -> None:
    other = DEPLOYMENT.replace("name: billing   #", "name: shipping   #")
    labelled = [
        text.replace("app: billing\n    spec", f'app: billing\n        {LABEL}: "true"\n    spec')
        for text in (DEPLOYMENT, other)
    ]
    annotations = [
        f'      annotations: {{{annotation("config_map")}: "{names}"}}\n' for names in ("billing,shipping", "shipping")
    ]
    two = "---\n".join(
        text.replace("    metadata:\n      labels", f"    metadata:\n{more}      labels")
        for text, more in zip(labelled, annotations, strict=True)
    )
    refused = inject(stdin=two)
    assert refused.exit_code == 1
    assert "would be one consumer group and share its partitions" in refused.stderr
    assert inject("--many", stdin=two).exit_code == 0
