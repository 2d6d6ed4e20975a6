#!/usr/bin/env bash
# gofmt, go vet and staticcheck over everything.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
bad=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l)
[ -z "$bad" ] || { echo "not gofmt'ed:"; echo "$bad"; exit 1; }
go vet ./...
go_tool honnef.co/go/tools/cmd/staticcheck v0.8.2
"$(cache_dir)/bin/staticcheck" ./...
echo "lint: clean"
