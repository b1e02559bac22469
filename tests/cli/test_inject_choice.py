"""`reconsume inject` in a stream: which workloads get the sidecar, and what is said where none may be chosen."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.test_inject import DEPLOYMENT, SERVICE, WISH, inject, sidecar, template

ASKS = '    metadata:\n      labels: {reconsume.io/inject: "true"}\n'
LABELS = "    metadata:\n      labels:\n        app: billing\n"
BOTH = ("--workload", "deployment/billing", "--workload", "deployment/other")
HOOKS = ('"helm.sh/hook": test', "argocd.argoproj.io/hook: PreSync")
OF_A_DEPLOYMENT = """\
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: billing}
spec:
  workloadRef: {apiVersion: apps/v1, kind: Deployment, name: billing}
"""
KNATIVE = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: shop}
spec:
  template:
    spec:
      containers: [{name: shop, image: "shop:1"}]
"""
SCALER = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: billing}
"""


def named(name: str, text: str = DEPLOYMENT) -> str:
    return text.replace("  name: billing   # and", f"  name: {name}   # and")


def stream(*texts: str) -> str:
    return "---\n".join(texts)


def injected(text: str) -> list[str]:
    """The names of the workloads that have a sidecar."""
    return [one["metadata"]["name"] for one in yaml.safe_load_all(text) if "name: reconsume\n" in yaml.safe_dump(one)]


def test_of_several_workloads_none_gets_it_unasked_and_the_answer_lists_them() -> None:
    text = stream(named("shop"), named("redis"), SERVICE)
    shown = inject(*WISH, stdin=text)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "none of 2 workloads is chosen" in shown.stderr
    assert "--workload: deployment/redis, deployment/shop" in shown.stderr


def test_those_with_the_label_get_it_and_a_second_run_without_options_changes_nothing() -> None:
    asks = named("shop", DEPLOYMENT.replace(LABELS, ASKS))
    text = stream(asks, named("redis"), named("mysql"))
    shown = inject(*WISH, stdin=text)
    assert (shown.exit_code, injected(shown.stdout)) == (0, ["shop"])
    assert shown.stderr.splitlines() == [
        "deployment/shop: sidecar added", "deployment/redis: passed over", "deployment/mysql: passed over",
    ]  # fmt: skip
    assert inject(stdin=shown.stdout).stdout == shown.stdout


def test_those_that_are_named_get_it_and_no_other_even_if_it_has_the_label() -> None:
    text = stream(named("shop"), named("redis", DEPLOYMENT.replace(LABELS, ASKS)))
    shown = inject(*WISH, "--workload", "Deployment/shop", stdin=text)
    assert (shown.exit_code, injected(shown.stdout)) == (0, ["shop"])


@pytest.mark.parametrize("name", ["deployment/nothing", "statefulset/shop"])
def test_a_name_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    shown = inject(*WISH, "--workload", name, stdin=stream(named("shop"), named("redis")))
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert f"{name} cannot be chosen; these can be: deployment/redis, deployment/shop" in shown.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_never_gets_it_and_does_not_count(hook: str) -> None:
    test = named("shop-test").replace("  name: shop-test", f"  annotations: {{{hook}}}\n  name: shop-test")
    shown = inject(*WISH, stdin=stream(DEPLOYMENT, test))
    assert (shown.exit_code, injected(shown.stdout)) == (0, ["billing"])
    refused = inject(*WISH, "--workload", "deployment/shop-test", stdin=stream(DEPLOYMENT, test))
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_one_group_in_two_workloads_must_be_meant() -> None:
    text = stream(named("billing"), named("other"))
    shown = inject(*WISH, *BOTH, stdin=text)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "deployment/billing, deployment/other would be one consumer group" in shown.stderr
    meant = inject(*WISH, *BOTH, "--many", stdin=text)
    assert injected(meant.stdout) == ["billing", "other"]
    assert inject(stdin=meant.stdout).stdout == meant.stdout, "and it is not asked again"
    spaced = text.replace("name: other ", "namespace: eu\n  name: other ")
    assert inject(*WISH, *BOTH, stdin=spaced).exit_code == 0, "a ConfigMap of another namespace is another one"


def test_a_rollout_gets_it_and_one_whose_pods_are_a_deployments_is_passed_over() -> None:
    rollout = DEPLOYMENT.replace("apps/v1", "argoproj.io/v1alpha1").replace("kind: Deployment", "kind: Rollout")
    shown = inject(*WISH, stdin=stream(rollout, SERVICE))
    assert shown.stderr.splitlines() == ["rollout/billing: sidecar added", "service/billing: passed over"]
    assert sidecar(template(next(yaml.safe_load_all(shown.stdout))))["restartPolicy"] == "Always"
    other = inject(*WISH, stdin=stream(OF_A_DEPLOYMENT, DEPLOYMENT))
    assert other.stderr.splitlines() == ["rollout/billing: passed over", "deployment/billing: sidecar added"]


def test_the_template_of_a_pod_that_is_not_understood_is_told_if_it_is_chosen() -> None:
    alone = inject(*WISH, stdin=KNATIVE)
    assert (alone.exit_code, alone.stdout) == (3, KNATIVE)
    assert "service/shop: has the template of a pod, and serving.knative.dev/v1 Service is not a kind" in alone.stderr
    chosen = inject(*WISH, *BOTH[:2], "--workload", "service/shop", stdin=stream(DEPLOYMENT, KNATIVE))
    assert (chosen.exit_code, injected(chosen.stdout)) == (3, ["billing"]), "what is understood is done"
    beside = inject(*WISH, *BOTH[:2], stdin=stream(DEPLOYMENT, KNATIVE))
    assert (beside.exit_code, injected(beside.stdout)) == (0, ["billing"])


def test_an_autoscaler_beside_it_gets_a_word() -> None:
    shown = inject(*WISH, stdin=stream(DEPLOYMENT, SCALER))
    assert "horizontalpodautoscaler/billing: passed over; where it scales by CPU, the request" in shown.stderr


def test_it_comes_behind_the_containers_of_its_mesh_and_before_all_others() -> None:
    names = ("istio-init", "vault-agent", "istio-proxy", "migration")
    inits = "".join(f"        - {{name: {name}, image: x:1}}\n" for name in names)
    text = f"{DEPLOYMENT}      initContainers:\n{inits}"

    def order(*words: str) -> list[str]:
        shown = inject(*WISH, *words, stdin=text)
        again = inject(stdin=shown.stdout)
        assert again.stdout == shown.stdout
        return [one["name"] for one in template(yaml.safe_load(shown.stdout))["spec"]["initContainers"]]

    assert order() == ["reconsume", *names]
    assert order("--mesh", "istio") == [*names[:3], "reconsume", "migration"]


def test_it_is_taken_out_wherever_it_is_without_being_named() -> None:
    text = stream(named("billing"), named("other"), KNATIVE)
    both = inject(*WISH, *BOTH, "--many", stdin=text).stdout
    shown = inject("--remove", stdin=both)
    assert (shown.exit_code, shown.stdout) == (0, text)
