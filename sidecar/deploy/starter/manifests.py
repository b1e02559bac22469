"""The manifests for Kubernetes: a Deployment with the sidecar of `inject`, and its configuration by Kustomize."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from reconsume.sidecar.deploy.annotations import SidecarAnnotations
from reconsume.sidecar.deploy.container import FILE, FOLDER, image
from reconsume.sidecar.deploy.manifest_file import change_all
from reconsume.sidecar.deploy.starter import placeholder
from reconsume.sidecar.deploy.starter.configuration import Answers
from reconsume.sidecar.deploy.starter.template import fill
from reconsume.sidecar.deploy.workload import with_sidecar
from reconsume.sidecar.settings.group_policy import flow

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
      terminationGracePeriodSeconds: 40
      securityContext:
        runAsNonRoot: true
        seccompProfile:
          type: RuntimeDefault
      containers:
        # @comment@
        - name: service
          image: @image@
          resources: # of the placeholder; a namespace with a quota takes no pod without
            requests:
              cpu: 50m
              memory: 64Mi
            limits:
              memory: 128Mi
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
  - topics-job.yaml # creates the group's topics; leave it out where a pipeline does
# `make image` in Reconsume's repository builds @sidecar_image@. No registry serves it: push it to yours, and name that:
# images: [{name: reconsume, newName: registry.example/reconsume}]
configMapGenerator:
  - name: @name@ # a hash becomes part of its name, so that a changed configuration restarts the pods
    files: [reconsume.yaml]
# Where the Prometheus Operator is installed, it scrapes each pod:
# components: [monitoring]
# Where Kafka wants a login: a Secret with a file `password`, mounted into the sidecar by the annotation
# reconsume.io/secrets and into the Job by hand; kafka: then has sasl.password.file (see the page Security).
# secretGenerator:
#   - name: @name@-kafka
#     files: [password]
"""
TOPICS_JOB = """\
# Creates the topics of the group and ends. `reconsume acls plan --role admin` has the rights that its user needs.
apiVersion: batch/v1
kind: Job
metadata:
  name: @topics_name@
  labels:
    app.kubernetes.io/name: @topics_name@
spec:
  backoffLimit: 6
  activeDeadlineSeconds: 600
  ttlSecondsAfterFinished: 600 # a Job cannot be changed; by the next roll-out this one is gone
  template:
    metadata:
      labels:
        app.kubernetes.io/name: @topics_name@
    spec:
      restartPolicy: OnFailure
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: topics
          image: @sidecar_image@
          args: [topics, apply, --yes, -c, @file@]
          resources:
            requests:
              cpu: 50m
              memory: 96Mi
            limits:
              memory: 256Mi
          securityContext:
            runAsUser: 65532
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: configuration
              mountPath: @folder@
              readOnly: true
      volumes:
        - name: configuration
          configMap:
            name: @name@
"""
MONITORING = """\
# A component, because the kind PodMonitor exists only where the Prometheus Operator is installed.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources:
  - podmonitor.yaml
"""
POD_MONITOR = """\
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: @name@
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: @name@
  podMetricsEndpoints:
    - port: reconsume
      path: /metrics
      interval: 15s
"""
COPY = """\
# A copy of @path@, because Kustomize reads no file outside its folder. Change both, or this one alone.

"""


def manifests(answers: Answers, configuration: str, path: str) -> dict[str, str]:
    """Return the texts of the manifests by the names of their files.

    `configuration`: the text of `reconsume.yaml`; `path`: where that is, for people.
    """
    name = workload_name(answers.group)
    values = {
        "name": flow(name),
        "path": path,
        "comment": placeholder.COMMENTS[answers.mode],
        "image": placeholder.IMAGE,
        "program": textwrap.indent(placeholder.placeholder(answers).strip(), " " * 14),
        "topics_name": flow(f"{name}-topics"),
        "sidecar_image": image(),
        "file": f"{FOLDER}/{FILE}",
        "folder": FOLDER,
    }
    deployment = fill(DEPLOYMENT, values)
    annotations = SidecarAnnotations(config_map=name)

    def put_in(workload: dict[str, Any]) -> dict[str, Any]:
        return with_sidecar(workload, annotations)

    return {
        "deployment.yaml": change_all("deployment.yaml", deployment, put_in).text,
        "topics-job.yaml": fill(TOPICS_JOB, values),
        "monitoring/kustomization.yaml": MONITORING,
        "monitoring/podmonitor.yaml": fill(POD_MONITOR, values),
        "kustomization.yaml": fill(KUSTOMIZATION, values),
        "reconsume.yaml": fill(COPY, values) + configuration,
    }


def workload_name(group: str) -> str:
    """Return a name that Kubernetes accepts, made from the name of the group."""
    plain = re.sub("[^a-z0-9]+", "-", group.lower())[:LONGEST].strip("-")
    return plain if plain[:1].isalpha() else f"group-{plain}".strip("-")
