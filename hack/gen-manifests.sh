#!/usr/bin/env bash
# Generates the files of config/ that say what the chart installs by default. Run by `make generate`, after gen-crds.sh, which
# copies CRDs and policies into the chart; `make check-generate` fails when the committed files differ.
set -euo pipefail
cd "$(dirname "$0")/.."
go run ./hack/manifests
