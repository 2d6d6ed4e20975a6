#!/usr/bin/env bash
# make e2e-storage-suite: Kubernetes' own storage tests against Gemel on the cluster of kind-up.
#   FOCUS=regexp, SKIP=regexp choose by name; PROCS=3 run at a time; TIMEOUT=2h for all; LUNS=4 tests striped volumes;
#   PARTS=together,disruptive runs some parts only
set -euo pipefail
. "$(dirname "$0")/lab.sh"
if ! use_docker || ! [ -s "$KUBECONFIG" ]; then
  echo "no cluster: make kind-up first" >&2
  exit 1
fi
export PATH="$LAB/bin:$PATH"
cd "$KIND_DIR/../.."

# clean takes away what a run that was killed has left: namespaces with what is in them, copies of the chart's classes.
clean() {
  kubectl delete namespace -l e2e-framework --ignore-not-found --timeout=300s
  kubectl get storageclass -o name | { grep -e -e2e-sc || true; } | xargs -r kubectl delete --ignore-not-found
  kubectl delete -f hack/storagesuite/storageclass-ext4.yaml -f config/samples/storageclass-striped.yaml --ignore-not-found
  kubectl get volumeattributesclass -o name | { grep -e -e2e-vac || true; } | xargs -r kubectl delete --ignore-not-found
  kubectl get volumesnapshotclass -l 'app.kubernetes.io/managed-by!=Helm' -o jsonpath='{.items[?(@.driver=="csi.gemel.storage")].metadata.name}' |
    xargs -r kubectl delete volumesnapshotclass --ignore-not-found
  kubectl get volumegroupsnapshotclass -l 'app.kubernetes.io/managed-by!=Helm' -o jsonpath='{.items[?(@.driver=="csi.gemel.storage")].metadata.name}' |
    xargs -r kubectl delete volumegroupsnapshotclass --ignore-not-found
}

# install_gemel ends with what the image now holds in the pods. The image keeps its name after a change, so for helm nothing has changed.
# shellcheck disable=SC2317 # timed calls it
install_gemel() {
  local what
  GEMEL_E2E=1 GEMEL_E2E_REPORT=out/storage-suite-install.json \
    go test -count=1 -timeout 15m ./e2e/kind -args -ginkgo.label-filter=install || return
  for what in deployment/gemel-operator deployment/gemel-csi-controller daemonset/gemel-csi-node; do
    kubectl -n gemel-system rollout restart "$what" && kubectl -n gemel-system rollout status "$what" --timeout=120s || return
  done
  kubectl apply -f config/samples/volumeattributesclass.yaml -f hack/storagesuite/storageclass-ext4.yaml -f config/samples/storageclass-striped.yaml
}

striped=() parts=${PARTS:-}
case ${LUNS:-1} in
1) ;;
4) striped=(-name storage-suite-striped -one-worker -testdriver hack/storagesuite/testdriver-striped.yaml)
  parts=${parts:-together,disruptive} ;;
*)
  echo "LUNS: $LUNS is not possible: 4, as in config/samples/storageclass-striped.yaml, or nothing" >&2
  exit 1
  ;;
esac
say "storage suite: the build"
"$KIND_DIR/gemel-image.sh"
"$KIND_DIR/e2etest.sh"
timed clean clean >"$LAB/logs/storage-suite-clean.log"
timed install install_gemel >"$LAB/logs/storage-suite-install.log" || { tail -n 60 "$LAB/logs/storage-suite-install.log" >&2; exit 1; }
say "storage suite: the tests"
status=0
go run ./hack/storagesuite -ginkgo "$LAB/bin/ginkgo" -suite "$LAB/bin/e2e.test" -procs "${PROCS:-3}" -timeout "${TIMEOUT:-2h}" \
  -parts "$parts" -focus "${FOCUS:-}" -skip "${SKIP:-}" "${striped[@]}" || status=$?
[ "$status" = 0 ] || clean >"$LAB/logs/storage-suite-clean.log"
exit "$status"
