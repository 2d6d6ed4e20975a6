// Package e2etest pins what Kubernetes' own storage tests are built from: e2e.test, agnhost (the
// image of their pods) and ginkgo, which runs them in parallel. go.mod is the one place that names
// the versions; that of Kubernetes has to be hyperkube's.
package e2etest

import _ "k8s.io/kubernetes/test/e2e" // its tests are e2e.test
