#!/usr/bin/env bash
# A kube-apiserver from the Go module proxy, for test_api_server.py: 9 minutes of processor time, so 4 to 5 on two cores,
# and 1.7 GB of memory at most; then the tests take 20 s.
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
# Its compilers and its linker then take less than 2 GB.
GOGC=50 GOMEMLIMIT=700MiB go build -p 2 -ldflags '-s -w' -o "$OUT" .
