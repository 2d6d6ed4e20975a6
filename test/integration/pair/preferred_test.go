package pair

import (
	"fmt"
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Linux ranks a preferred path that is not optimized above an optimized one (docs/decisions/0028).
func TestOnlyTheOptimizedPathIsPreferred(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 16<<20, "a")
	d := open(t, ctx, m)
	want := func(owner int, preferred bool) {
		t.Helper()
		if err := harness.Wait(ctx, "paths as the owner has them", func() (bool, string) {
			ok, paths := true, d.Paths()
			for i, s := range paths {
				state := alua.NonOptimized
				if i == owner {
					state = alua.Optimized
				}
				ok = ok && s.Connected && s.State == state && s.Preferred == (preferred && i == owner)
			}
			return ok, fmt.Sprintf("%+v", paths)
		}); err != nil {
			t.Fatal(err)
		}
	}
	want(0, true)
	// The drain of its home leaves the home where it is.
	if _, err := p.Client(0).Drain(ctx, &targetv1.DrainRequest{Node: "a", Seconds: 600}); err != nil {
		t.Fatal(err)
	}
	want(1, false)
	// A transfer moves the home as well.
	if _, err := p.Client(0).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{lun.Uuid}, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
	want(1, true)
}
