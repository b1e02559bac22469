#!/bin/sh
# Build the sidecar's image and run the main job with it: test.sh ENGINE PYTHON [argument of pytest]...
# Where no base can be pulled, one is made of Debian's packages, and a Kafka upon it; that needs root and debootstrap.
set -eu

engine=$1 python=$2
shift 2
cd "$(dirname "$0")/../.."

if [ -z "$engine" ] || ! "$engine" info >/dev/null 2>&1; then
    echo "image-test: skipped, because no container engine answers here (docker or podman; ENGINE= names one)"
    exit 0
fi

base=${BASE:-docker.io/library/python:3.13-slim-trixie}
network=default
if ! "$engine" pull --quiet "$base"; then
    echo "image-test: $base cannot be pulled; made of Debian's packages instead" >&2
    base=localhost/reconsume-base:debian
    network=host
    sh tests/image/debian.sh "$engine" "$base"
    sh tests/image/kafka.sh "$engine" "$base" localhost/reconsume-kafka:test "$python"
    export RECONSUME_KAFKA_IMAGE=localhost/reconsume-kafka:test
fi
sh deploy/image/build.sh "$engine" sidecar localhost/reconsume "$base" "--network=$network"

# Ryuk is one more image to pull; the tests end what they start.
export TESTCONTAINERS_RYUK_DISABLED=true RECONSUME_IMAGE=localhost/reconsume
exec "$python" -m pytest tests/image --kafka testcontainers "$@"
