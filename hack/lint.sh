#!/usr/bin/env bash
# gofmt, go vet and staticcheck over everything, and the word list of hack/vale over Markdown and the comments of Go files.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
bad=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l)
[ -z "$bad" ] || { echo "not gofmt'ed:"; echo "$bad"; exit 1; }
go vet ./...
go_tool honnef.co/go/tools/cmd/staticcheck v0.8.2
"$(cache_dir)/bin/staticcheck" ./...
# vale reads Go comments with parsers in C, built without optimization: that takes one minute in place of several. Generated files have the
# words of their sources, and testdata is no text.
need gcc gcc
need_file /usr/include/stdio.h libc6-dev
CGO_CFLAGS="-O0 -w" go_tool github.com/vale-cli/vale/v3/cmd/vale v3.21.0
git ls-files -co --exclude-standard '*.md' '*.go' | grep -v -E '(^|/)testdata/|\.pb\.go$|/zz_generated' |
  xargs "$(cache_dir)/bin/vale" --config .vale.ini --output line
echo "lint: clean"
