#!/usr/bin/env bash
# Generates the deep copies of api/v1alpha1 and the CRDs in config/crd/bases, with the controller-gen pinned here. Run by
# `make generate`; `make check-generate` fails when the committed files differ.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
bin=$(cache_dir)/bin
go_tool sigs.k8s.io/controller-tools/cmd/controller-gen v0.21.0
"$bin/controller-gen" object paths=./api/v1alpha1
rm -f config/crd/bases/*.yaml
"$bin/controller-gen" crd:generateEmbeddedObjectMeta=false paths=./api/v1alpha1 output:crd:dir=config/crd/bases
# The chart carries copies: Helm reads nothing outside of it.
rm -f charts/gemel/files/crds/*.yaml charts/gemel/files/policies/*.yaml
cp config/crd/bases/*.yaml charts/gemel/files/crds/
cp config/policy/{data,lease,storageclass}.yaml charts/gemel/files/policies/
