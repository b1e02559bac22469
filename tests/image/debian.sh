#!/bin/sh
# An image like python:slim, of Debian's packages, for machines that can pull none: debian.sh ENGINE IMAGE
set -eu

engine=$1 image=$2
if "$engine" image inspect "$image" >/dev/null 2>&1; then
    exit 0
fi
if ! command -v debootstrap >/dev/null; then
    echo "image-test: debootstrap is needed: apt-get install debootstrap" >&2
    exit 1
fi
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$suite" "$root" >/dev/null
# Trust whom this machine trusts: what stands between it and the package index may have a certificate of its own.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
tar --create --directory "$root" . | "$engine" import \
    --change "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt" \
    - "$image"
