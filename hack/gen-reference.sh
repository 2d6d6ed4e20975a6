#!/usr/bin/env bash
# Generates docs/reference/crds.md from the types of api/v1alpha1, with the crd-ref-docs pinned here, and docs/reference/flags.md from
# --help of every program; with an argument, into that folder. Run by `make generate`; `make check-generate` fails when the committed
# pages differ.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
go_tool github.com/elastic/crd-ref-docs v0.3.0
out=${1:-docs/reference}
mkdir -p "$out"
"$(cache_dir)/bin/crd-ref-docs" --source-path=api/v1alpha1 --config=hack/reference/crds.yaml --renderer=markdown \
  --templates-dir=hack/reference/templates --output-path="$out/crds.md" --log-level=ERROR
page=$(cat "$out/crds.md") # without the blank lines at its end
echo "$page" >"$out/crds.md"
page=$(go run ./hack/reference)
echo "$page" >"$out/flags.md"
