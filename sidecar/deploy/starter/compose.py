"""The Compose file: Kafka, the topics, a placeholder for the service, and the sidecar beside it."""

from __future__ import annotations

import json
import textwrap

from reconsume.sidecar.deploy.container import FILE, FOLDER, PROBE_PORT, image
from reconsume.sidecar.deploy.starter import placeholder
from reconsume.sidecar.deploy.starter.configuration import Answers
from reconsume.sidecar.deploy.starter.template import fill
from reconsume.sidecar.deploy.starter.token import TOKENS

KAFKA_IMAGE = "apache/kafka:4.3.1"
INSIDE = "kafka:19092"
"""The broker for the other containers. It has a listener of its own, because a client gets the address that the
listener advertises."""
PARTITIONS = 3
TEMPLATE = """\
# Kafka, the topics, a service and its sidecar on this machine, to try them out together: docker compose up
# Nothing is kept: `docker compose down` removes it all.
# `make image` in Reconsume's repository builds the image @image@. Docker Compose 2.23.1 or newer reads this file:
# older ones know no `content` of a config.
#
# To see a retry, produce a record that the placeholder refuses (its value is no JSON), and look at the dashboard:
#
#   docker compose exec kafka /opt/kafka/bin/kafka-console-producer.sh --bootstrap-server @inside@ --topic @topic@
#   > refused
#   http://127.0.0.1:@dashboard@/   # sign in with the token in @tokens@ to redrive dead letters
#   docker compose exec dashboard reconsume retries list -c @file@

services:
  # One node of Apache Kafka. Programs on this machine reach it at localhost:9092.
  kafka:
    image: @kafka_image@
    environment:
      KAFKA_NODE_ID: "1"
      KAFKA_PROCESS_ROLES: broker,controller
      KAFKA_LISTENERS: PLAINTEXT://:19092,HOST://:9092,CONTROLLER://:9093
      KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://@inside@,HOST://localhost:9092
      KAFKA_LISTENER_SECURITY_PROTOCOL_MAP: CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT
      KAFKA_CONTROLLER_LISTENER_NAMES: CONTROLLER
      KAFKA_CONTROLLER_QUORUM_VOTERS: 1@localhost:9093
      # One node can keep one copy only.
      KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_MIN_ISR: "1"
      KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS: "0"
    ports: ["127.0.0.1:9092:9092"]
    healthcheck:
      test: [CMD, /opt/kafka/bin/kafka-broker-api-versions.sh, --bootstrap-server, "@inside@"]
      interval: 3s
      timeout: 20s
      retries: 20

  # Create the main topics. A real cluster has them already.
  main-topics:
    image: @kafka_image@
    depends_on: {kafka: {condition: service_healthy}}
    command:
      - /bin/sh
      - -ec
      - |
@create@

  # Create the topics of the group: the levels of its retries, the DLQ and the others.
  group-topics:
    image: @image@
    depends_on: {main-topics: {condition: service_completed_successfully}}
    command: [topics, apply, --yes, -c, @file@]
    environment: {RECONSUME_KAFKA__BOOTSTRAP_SERVERS: "@inside@"}
    volumes: [{type: bind, source: @source@, target: @file@, read_only: true}]

  # @comment@
  service:
    image: @service_image@
    init: true
    command:
      - python3
      - -u
      - -c
      - |
@program@
    # Probes and metrics of the sidecar, which shares this network: http://127.0.0.1:@probes@/metrics
    ports: ["127.0.0.1:@probes@:@probes@"]

  # The sidecar. As in a pod, it and the service reach each other at 127.0.0.1.
  sidecar:
    image: @image@
    depends_on:
      group-topics: {condition: service_completed_successfully}
      service: {condition: service_started}
    network_mode: "service:service"
    command: [run, -c, @file@]
    environment: {RECONSUME_KAFKA__BOOTSTRAP_SERVERS: "@inside@"}
    volumes: [{type: bind, source: @source@, target: @file@, read_only: true}]
    stop_grace_period: 40s

  # The dashboard: http://127.0.0.1:@dashboard@/. Whoever signs in sees values, and may redrive and dismiss.
  dashboard:
    image: @image@
    depends_on: {group-topics: {condition: service_completed_successfully}}
    command: [ui, -c, @file@, --listen, "0.0.0.0:@dashboard@", --token-file, /run/token, --audit-file, /tmp/audit.jsonl]
    environment: {RECONSUME_KAFKA__BOOTSTRAP_SERVERS: "@inside@"}
    volumes: [{type: bind, source: @source@, target: @file@, read_only: true}]
    configs: [{source: token, target: /run/token}]
    ports: ["127.0.0.1:@dashboard@:@dashboard@"]

configs:
  token: {environment: @variable@}
"""
DASHBOARD_PORT = 8473
VARIABLE = "RECONSUME_OPERATORS_TOKEN"
"""The variable from which Compose takes the token, so that it is in no file but its own."""


def compose(answers: Answers, file: str) -> str:
    """Return the text of the Compose file. `file`: the name of the configuration, in the same folder."""
    values = {
        "image": image(),
        "kafka_image": KAFKA_IMAGE,
        "inside": INSIDE,
        "file": f"{FOLDER}/{FILE}",
        "source": json.dumps(f"./{file}".replace("$", "$$")),
        "create": block("cd /opt/kafka/bin\n" + "".join(map(create, answers.topics))),
        "comment": placeholder.COMMENTS[answers.mode],
        "service_image": placeholder.IMAGE,
        "program": block(placeholder.placeholder(answers)),
        "probes": str(PROBE_PORT),
        "topic": answers.topics[0],
        "dashboard": str(DASHBOARD_PORT),
        "tokens": TOKENS,
        "variable": VARIABLE,
    }
    return fill(TEMPLATE, values)


def create(topic: str) -> str:
    """Return the shell's line that creates a main topic. Its name needs no quotes: it has letters, digits, . _ -."""
    options = f"--create --if-not-exists --partitions {PARTITIONS} --topic={topic}"
    return f"./kafka-topics.sh --bootstrap-server {INSIDE} {options}\n"


def block(program: str) -> str:
    """Return a program as the content of a YAML block. Compose would take $ for the name of a variable."""
    return textwrap.indent(program.strip().replace("$", "$$"), " " * 8)
