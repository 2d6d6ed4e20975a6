#!/usr/bin/env bash
# Regenerates into a copy and compares, so that the work tree is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/t"
git ls-files -co --exclude-standard | grep -E '^(api|hack|config|charts|go\.(mod|sum))' | tar -cf - -T - | tar -xf - -C "$tmp/t"
"$tmp/t/hack/gen-proto.sh"
"$tmp/t/hack/gen-crds.sh"
"$tmp/t/hack/gen-manifests.sh"
hack/gen-reference.sh "$tmp/reference"
if ! diff -r api "$tmp/t/api" || ! diff -r config "$tmp/t/config" || ! diff -r charts "$tmp/t/charts" ||
  ! diff docs/reference/crds.md "$tmp/reference/crds.md" || ! diff docs/reference/flags.md "$tmp/reference/flags.md"; then
  echo "generated code differs from its source: run 'make generate' and commit" >&2
  exit 1
fi
echo "generated code: up to date"
