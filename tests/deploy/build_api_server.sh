#!/usr/bin/env bash
# A kube-apiserver from the Go module proxy, for test_api_server.py: some 15 minutes on two cores, then 5 s a start.
#   tests/deploy/build_api_server.sh /tmp/kube-apiserver && apt-get install etcd-server
#   RECONSUME_KUBE_APISERVER=/tmp/kube-apiserver pytest tests/deploy/test_api_server.py
set -euo pipefail

OUT=$(realpath -m "${1:?where the program shall be put}")
MINOR=36.3
cd "$(mktemp -d)"
go mod init example.com/apiserver
cat > main.go <<'GO'
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
GO
# Its own go.mod points to folders beside it, which a module that needs it does not have: the published ones instead.
file=$(go mod download -json "k8s.io/kubernetes@v1.$MINOR" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require="k8s.io/kubernetes@v1.$MINOR"
for module in $(sed -nE 's/^[[:space:]]*(k8s.io\/[a-z0-9-]+) => .\/staging.*/\1/p' "$file" | grep -v /sample-); do
	go mod edit -require="$module@v0.$MINOR" -replace="$module=$module@v0.$MINOR"
done
go mod tidy
go build -ldflags '-s -w' -o "$OUT" .
