#!/bin/sh
# A Kafka in an image, of Debian's Java and the jars of the embedded broker: kafka.sh ENGINE BASE IMAGE PYTHON
# It takes its settings from KAFKA_… variables, as Apache Kafka's own image does.
set -eu

engine=$1 base=$2 image=$3 python=$4
if "$engine" image inspect "$image" >/dev/null 2>&1; then
    exit 0
fi
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/jars"
"$python" -c 'from reconsume.sidecar.dev.kafka.releases import NEWEST, lock_of; from reconsume.sidecar.java.jars import fetch; print(*fetch(lock_of(NEWEST)), sep="\n")' |
    while read -r jar; do cp "$jar" "$context/jars/"; done
cp tests/image/kafka_node.py "$context/"
cat > "$context/Containerfile" <<END
FROM $base
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless
COPY jars /opt/kafka/jars
COPY kafka_node.py /opt/kafka/
ENTRYPOINT ["python3", "/opt/kafka/kafka_node.py"]
END
"$engine" build --network=host --file "$context/Containerfile" --tag "$image" "$context"
