// Package kind proves on a kind cluster what an app team and an administrator see. `make kind-up`
// makes the cluster, `make e2e` runs this against it.
package kind

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/report"
)

func TestKindSuite(t *testing.T) {
	if os.Getenv("GEMEL_E2E") == "" {
		t.Skip("GEMEL_E2E is not set: this needs the kind cluster of `make kind-up`; `make e2e` sets it")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(2 * time.Minute)
	SetDefaultEventuallyPollingInterval(250 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "kind")
}

var _ = BeforeSuite(func(ctx context.Context) {
	Expect(os.Getenv("KUBECONFIG")).NotTo(BeEmpty(), "run this by `make e2e`")
	if !alone() { // it installs what it upgrades
		install(ctx)
	}
}, NodeTimeout(8*time.Minute))

var _ = AfterEach(func(ctx context.Context) {
	if CurrentSpecReport().Failed() {
		diagnose(ctx, CurrentSpecReport().LeafNodeText)
	}
}, NodeTimeout(2*time.Minute))

var _ = ReportAfterSuite("the counts", func(r Report) {
	results.Counts = report.Count(r)
	path := cmp.Or(os.Getenv("GEMEL_E2E_REPORT"), "out/e2e.json")
	if err := jsonfile.Write(filepath.Join(root, path), &results); err != nil {
		fmt.Fprintln(os.Stderr, path+":", err)
	}
})
