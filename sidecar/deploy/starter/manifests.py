"""The manifests for Kubernetes: a Deployment with the sidecar of `inject`, and its configuration by Kustomize."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from sidecar.deploy.annotations import SidecarAnnotations
from sidecar.deploy.manifest_file import change_all
from sidecar.deploy.starter import placeholder
from sidecar.deploy.starter.configuration import Answers, flow
from sidecar.deploy.starter.template import fill
from sidecar.deploy.workload import with_sidecar

LONGEST = 40
"""Characters of the workload's name. With a suffix, Kubernetes still accepts it as a label and a volume."""
DEPLOYMENT = """\
# A service and its sidecar. `reconsume inject -f deployment.yaml -i` renews the sidecar.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: @name@
  labels:
    app.kubernetes.io/name: @name@
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: @name@
  template:
    metadata:
      labels:
        app.kubernetes.io/name: @name@
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        seccompProfile:
          type: RuntimeDefault
      containers:
        # @comment@
        - name: service
          image: @image@
          command:
            - python3
            - -u
            - -c
            - |
@program@
          securityContext:
            runAsUser: 65532
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
"""
KUSTOMIZATION = """\
# kubectl apply -k .
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - deployment.yaml
configMapGenerator:
  - name: @name@ # a hash becomes part of its name, so that a changed configuration restarts the pods
    files: [reconsume.yaml]
"""


def manifests(answers: Answers, configuration: str) -> dict[str, str]:
    """Return the texts of the manifests by the names of their files. `configuration`: the text of `reconsume.yaml`."""
    name = workload_name(answers.group)
    values = {
        "name": flow(name),
        "comment": placeholder.COMMENTS[answers.mode],
        "image": placeholder.IMAGE,
        "program": textwrap.indent(placeholder.placeholder(answers).strip(), " " * 14),
    }
    deployment, kustomization = (fill(template, values) for template in (DEPLOYMENT, KUSTOMIZATION))
    annotations = SidecarAnnotations(config_map=name)

    def put_in(workload: dict[str, Any]) -> dict[str, Any]:
        return with_sidecar(workload, annotations)

    return {
        "deployment.yaml": change_all("deployment.yaml", deployment, put_in).text,
        "kustomization.yaml": kustomization,
        "reconsume.yaml": configuration,
    }


def workload_name(group: str) -> str:
    """Return a name that Kubernetes accepts, made from the name of the group."""
    plain = re.sub("[^a-z0-9]+", "-", group.lower())[:LONGEST].strip("-")
    return plain if plain[:1].isalpha() else f"group-{plain}".strip("-")
