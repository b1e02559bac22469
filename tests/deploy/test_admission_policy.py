"""The admission policy, evaluated: it makes of a pod what `reconsume inject` makes of it.

Its CEL runs in Google's own implementation, with `Object.…{}` and `JSONPatch{}` as plain maps; what only an API server
knows, the types behind these, is proved by `test_api_server.py`.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from reconsume.sidecar.deploy.annotations import LABEL, annotation
from reconsume.sidecar.deploy.container import container, volumes
from reconsume.sidecar.deploy.workload import WrongManifestError, read_annotations, with_sidecar
from tests.support.kubernetes.kubectl import Object, named, of_kind, overlay

STATUS = "reconsume.io/status"
DYN = cel.Type.DYN
ESCAPE = cel.FunctionDecl(
    "jsonpatch.escapeKey",
    [
        cel.Overload(
            "escape_key",
            return_type=cel.Type.STRING,
            parameters=[cel.Type.STRING],
            impl=lambda key: key.replace("~", "~0").replace("/", "~1"),
        )
    ],
)
ENV = cel.NewEnv(
    variables={"object": DYN, "params": DYN, "variables": DYN},
    extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
    functions=[ESCAPE],
)


def parameters() -> Object:
    """The policy's parameters, as the overlay has them."""
    return named(overlay("injection"), "ConfigMap", "reconsume-injection")


def policy() -> Any:
    """The policy's specification."""
    return of_kind(overlay("injection"), "MutatingAdmissionPolicy")[0]["spec"]


def evaluate(expression: str, **data: Any) -> Any:
    """The value of an expression of the policy."""
    plain = re.sub(r"\b(?:Object(?:\.\w+)*|JSONPatch)\{", "{", expression)
    plain = re.sub(r"(?<=[{,\s])(\w+):(?=\s)", r"'\1':", plain)
    return ENV.compile(plain).eval(data=data).plain_value()


def admitted(pod: Object) -> Object:
    """The pod as the API server would store it."""
    if any(not evaluate(one["expression"], object=pod) for one in policy()["matchConditions"]):
        return pod
    variables: dict[str, Any] = {}
    for one in policy()["variables"]:
        variables[one["name"]] = evaluate(one["expression"], object=pod, params=parameters(), variables=variables)
    made = copy.deepcopy(pod)
    (mutation,) = policy()["mutations"]
    given = {"object": pod, "params": parameters(), "variables": variables}
    for step in evaluate(mutation["jsonPatch"]["expression"], **given):
        patch(made, step)
    for one in made["spec"]["initContainers"]:
        if one.get("volumeMounts") == []:  # the same to an API server, which drops it
            del one["volumeMounts"]
    return made


def patch(document: Object, step: Object) -> None:
    """One `add` of RFC 6902."""
    assert step["op"] == "add"
    *path, last = [key.replace("~1", "/").replace("~0", "~") for key in step["path"].split("/")[1:]]
    place: Any = document
    for key in path:
        place = place[key]
    if last == "-":
        place.append(step["value"])
    elif isinstance(place, list):
        place.insert(int(last), step["value"])
    else:
        place[last] = step["value"]


def pod(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod that asks for a sidecar. The API server sets the usual 30 s before it asks the policy."""
    metadata: Object = {"name": "billing-0", "labels": {"app": "billing", LABEL: "true"}}
    if annotations is not None:
        metadata["annotations"] = {annotation(name): value for name, value in annotations.items()}
    containers = [{"name": "billing", "image": "billing:1.0.0"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 30, **spec},
    }


URL = "http://127.0.0.1:8080/events"
ALONE = {"config_map": "", "group": "billing", "topics": "orders, invoices", "url": URL, "bootstrap_servers": "k:9092"}
MIGRATION = [{"name": "migration", "image": "billing:1.0.0"}]
CASES = {
    "nothing said": pod(),
    "a URL": pod({"url": URL}),
    "all but a ConfigMap": pod(ALONE),
    "another mode": pod({"mode": "pull"}),
    "another ConfigMap, image and limit": pod(
        {"config_map": "mine", "image": "mirror/reconsume:9", "memory_limit": "1Gi"}
    ),
    "two groups": pod({"config_map": "billing, shipping.v2"}),
    "five groups": pod({"config_map": "a,b,c,d,e"}),
    "two groups with a limit": pod({"config_map": "billing,shipping", "memory_limit": "1Gi"}),
    "secrets": pod({"secrets": "billing-sidecar, kafka.ca"}),
    "secrets for a group": pod({"secrets": "billing-sidecar"}, securityContext={"fsGroup": 65532}),
    "a short time to end": pod({}, terminationGracePeriodSeconds=3),
    "a long time to end": pod({}, terminationGracePeriodSeconds=90_000),
    "empty annotations": pod({"image": "", "topics": "", "memory_limit": "", "url": "", "secrets": ""}),
    "cpu": pod({"cpu_request": "100m", "cpu_limit": "1"}),
    "a limit of cpu alone": pod({"cpu_limit": "500m"}),
    "a limit of cpu below the usual request": pod({"cpu_limit": "20m"}),
    "the same in cores": pod({"cpu_limit": "0.02"}),
    "addresses of IPv6 only": pod({"ip_family": "ipv6"}),
    "a port of its own": pod(
        {}, containers=[{"name": "billing", "image": "billing:1.0.0", "ports": [{"containerPort": 8080}]}]
    ),
    "a user of its own": pod({}, securityContext={"runAsUser": 1000}),
    "init containers and volumes": pod({}, initContainers=MIGRATION, volumes=[{"name": "cache", "emptyDir": {}}]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_policy_and_the_command_make_the_same_pod(case: str) -> None:
    before = CASES[case]
    made = admitted(before)
    annotations = {annotation("config_map"): "reconsume", **before["metadata"].get("annotations", {})}
    expected = with_sidecar(before, read_annotations(annotations))
    assert made["spec"] == expected["spec"]
    assert made["metadata"]["labels"] == expected["metadata"]["labels"]
    assert made["metadata"]["annotations"] == {**before["metadata"].get("annotations", {}), STATUS: "injected"}


@pytest.mark.parametrize("case", CASES)
def test_a_second_time_nothing_is_done(case: str) -> None:
    once = admitted(CASES[case])
    assert admitted(once) == once


def test_a_sidecar_of_another_way_is_left_alone() -> None:
    """Given a pod that `reconsume inject` has changed, native or plain, then the policy does nothing."""
    for kind in ("native", "plain"):
        wish = read_annotations({annotation("config_map"): "reconsume", annotation("container"): kind})
        injected = with_sidecar(pod({}), wish)
        assert admitted(injected) == injected


def test_a_pod_that_wants_an_ordinary_container_is_left_to_the_command() -> None:
    wanted = pod({"container": "plain"})
    assert admitted(wanted) == wanted


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"securityContext": {"runAsUser": 0}},
        {"containers": [{"name": "billing", "image": "billing:1.0.0", "ports": [{"containerPort": 8472}]}]},
        {"initContainers": [{"name": "mesh", "image": "mesh:1", "ports": [{"containerPort": 8472}]}]},
    ],
    ids=["node's network", "root", "port", "port of another sidecar"],
)
def test_a_pod_that_the_command_refuses_is_left_alone(spec: Object) -> None:
    wanted = pod({}, **spec)
    assert admitted(wanted) == wanted
    with pytest.raises(WrongManifestError):
        with_sidecar(wanted, read_annotations({annotation("config_map"): "reconsume"}))


def test_types_are_used_where_the_server_knows_them() -> None:
    """`Object` and `JSONPatch` are known to mutations alone; a server refuses the whole policy else."""
    for one in (*policy()["variables"], *policy()["matchConditions"]):
        assert not re.search(r"\b(Object|JSONPatch)\b", one["expression"]), one["name"]
    for one in policy()["matchConditions"]:
        assert "variables" not in one["expression"], one["name"]


def test_only_pods_with_the_label_are_asked_about() -> None:
    constraints = policy()["matchConstraints"]
    assert constraints["objectSelector"] == {"matchLabels": {LABEL: "true"}}
    (rule,) = constraints["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"])


def test_a_pod_starts_without_its_sidecar_rather_than_not_at_all() -> None:
    assert policy()["failurePolicy"] == "Ignore"


def test_the_binding_names_the_policy_and_its_parameters() -> None:
    (binding,) = of_kind(overlay("injection"), "MutatingAdmissionPolicyBinding")
    assert (
        binding["spec"]["policyName"] == of_kind(overlay("injection"), "MutatingAdmissionPolicy")[0]["metadata"]["name"]
    )
    reference = binding["spec"]["paramRef"]
    assert {key: reference[key] for key in ("name", "namespace")} == {
        key: parameters()["metadata"][key] for key in ("name", "namespace")
    }
    wish = read_annotations({annotation("config_map"): parameters()["data"]["config-map"]})
    assert container(wish, 30)["image"] == parameters()["data"]["image"]
    assert container(wish, 30)["resources"]["limits"]["memory"] == parameters()["data"]["memory-limit"]
    assert volumes(wish)[0]["configMap"]["name"] == parameters()["data"]["config-map"]
