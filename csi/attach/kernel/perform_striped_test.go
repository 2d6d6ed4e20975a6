package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// stripedFixture is a worker with a striped map: a map of the recorded one, under the UUID of ours.
func stripedFixture(t *testing.T) (*linux, dmMap) {
	t.Helper()
	l := openFixture(t, "two-volumes")
	m := mapOfFixture(t, l)
	attributeOf(t, l, m, "uuid", stripedUUID("v1"))
	m.uuid, m.id = stripedUUID("v1"), naa{}
	return l, m
}

// Hazard 32: a striped map is found by its UUID, and its table is the kernel's.
func TestHazard32Observed(t *testing.T) {
	l, m := stripedFixture(t)
	calls := entered(t, l, `echo " 0 8192 striped 2 512 253:0 0 253:1 0 "`)
	o, err := l.observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := o.stripedOf("v1")
	if got == nil || got.kernel != m.kernel || got.table != "0 8192 striped 2 512 253:0 0 253:1 0" || !got.striped() || o.stripedOf("v2") != nil || len(o.maps) != 1 {
		t.Errorf("%+v; %+v", got, o.maps)
	}
	if c := calls(); c != "dmsetup table --uuid "+stripedUUID("v1")+"\n" {
		t.Errorf("%q", c)
	}
	// It is gone meanwhile, or has never had a table.
	entered(t, l, "exit 1")
	if o, err := l.observe(t.Context()); err != nil || o.stripedOf("v1").table != "" {
		t.Errorf("%+v, %v", o, err)
	}
	// Nothing is known: that is no map without a table.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	entered(t, l, "exec sleep 60")
	if o, err := l.observe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v", o, err)
	}
}

// Hazard 33: a table is swapped in by one call that can be interrupted, without a suspend and a
// freeze of its own.
func TestHazard33Commands(t *testing.T) {
	l, m := stripedFixture(t)
	uuid := stripedUUID("v1")
	calls := entered(t, l, "exit 0")
	for _, s := range []step{{do: doMakeStripes, volume: "v1", table: "T"}, {do: doGrowStripes, dm: m, table: "U"}, {do: doResume, dm: m}, {do: doDropStripes, dm: m}} {
		if s.do == doResume {
			attributeOf(t, l, m, "suspended", "1")
		}
		if err := l.do(t.Context(), s); err != nil {
			t.Error(s, err)
		}
	}
	want := []string{"dmsetup create gemel-v1 --uuid " + uuid + " --table T", "dmsetup load --uuid " + uuid + " --table U",
		"dmsetup resume --noflush --nolockfs --uuid " + uuid, "dmsetup resume --uuid " + uuid, "dmsetup remove --retry --uuid " + uuid, ""}
	if got := calls(); got != strings.Join(want, "\n") {
		t.Errorf("%s", got)
	}
	// A table that is refused is not swapped in.
	calls = entered(t, l, "exit 1")
	if err := l.do(t.Context(), step{do: doGrowStripes, dm: m, table: "U"}); !errors.Is(err, errExit) || strings.Contains(calls(), "resume") {
		t.Error(err, calls())
	}
	// One that is used meanwhile stays.
	if err := os.MkdirAll(l.path("/sys/block", m.kernel, "holders"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.path("/sys/block", m.kernel, "holders"), "dm-9"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := calls()
	if err := l.do(t.Context(), step{do: doDropStripes, dm: m}); !errors.Is(err, attach.ErrBusy) || calls() != before {
		t.Error(err, calls())
	}
}
