package sanity

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// TestCSISanity runs the conformance suite of the CSI specification.
func TestCSISanity(t *testing.T) {
	e := start(t, 8*time.Minute)
	c := sanity.NewTestConfig()
	c.Address = e.plugin.Endpoint()
	c.TargetPath = filepath.Join(e.dir, "target")
	c.StagingPath = filepath.Join(e.dir, "staging")
	c.TestVolumeSize = 320 << 20
	c.TestVolumeExpandSize = 400 << 20
	c.IdempotentCount = 3
	sanity.Test(t, c)
}
