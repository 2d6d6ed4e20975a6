package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// Write cache mode and preferred node are set at creation, and change while a host uses the volume.
func TestModifyAVolumeInUse(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	req := r.wish("modified")
	req.Mutable = backend.Mutable{PreferredNode: "b", PinnedNode: v1alpha1.NoPin, WriteCache: v1alpha1.WriteThrough, Tier: v1alpha1.NoPin}
	v, err := r.b.CreateVolume(r.ctx, req)
	r.ok(err)
	if l := r.lun(v.ID); v.Mutable != req.Mutable || l.Owner != "b" || l.PreferredNode != "b" || l.WriteCache.Word() != v1alpha1.WriteThrough {
		t.Fatalf("%+v, %v", v, l)
	}
	r.ok(r.publish(v.ID, hostA))
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{WriteCache: v1alpha1.WriteBack})
	r.ok(err)
	if v.Mutable != (backend.Mutable{PreferredNode: "b", PinnedNode: v1alpha1.NoPin, WriteCache: v1alpha1.WriteBack, Tier: v1alpha1.NoPin}) || r.lun(v.ID).WriteCache.Word() != v1alpha1.WriteBack {
		t.Fatalf("%+v", v)
	}
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{PreferredNode: "a"})
	r.ok(err)
	if l := r.lun(v.ID); v.PreferredNode != "a" || l.PreferredNode != "a" || len(l.Mappings) != 1 {
		t.Fatalf("%+v, %v", v, l)
	}

	// An administrator's change and the driver's: what the driver did not name is not undone by it.
	r.ok(r.edit(v.ID, func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "b" }))
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{WriteCache: v1alpha1.WriteThrough})
	r.ok(err)
	if v.Mutable != req.Mutable {
		t.Fatalf("%+v", v)
	}

	// A pin is the home; a preferred node that is named meanwhile counts when the pin is gone.
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{PinnedNode: "b"})
	r.ok(err)
	if l := r.lun(v.ID); v.PinnedNode != "b" || l.PinnedNode != "b" {
		t.Fatalf("%+v, %v", v, l)
	}
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{PreferredNode: "a"})
	r.ok(err)
	if l := r.lun(v.ID); l.PinnedNode != "b" {
		t.Fatalf("%+v, %v", v, l)
	}
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{PinnedNode: v1alpha1.NoPin})
	r.ok(err)
	if v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{PreferredNode: "b"}); err != nil || v.Mutable != req.Mutable {
		t.Fatalf("%+v, %v", v, err)
	}

	// The disks know it.
	if l := r.lun(v.ID); l.PreferredNode != "b" || l.WriteCache.Word() != v1alpha1.WriteThrough {
		t.Fatal(l)
	}
	_, err = r.b.ModifyVolume(r.ctx, r.b.VolumeID("nothing"), backend.Mutable{})
	if !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	_, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{WriteCache: "off"})
	if !errors.Is(err, backend.ErrInvalid) {
		t.Fatal(err)
	}
	// The pool has one tier.
	if _, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{Tier: v1alpha1.TierFast}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "spec.tier") {
		t.Fatal(err)
	}
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{Tier: v1alpha1.NoPin})
	r.ok(err)
	if v.Mutable != req.Mutable {
		t.Fatalf("%+v", v)
	}
	fast := r.wish("fast")
	fast.Tier = v1alpha1.TierFast
	if _, err := r.b.CreateVolume(r.ctx, fast); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "spec.tier") {
		t.Fatalf("a new volume on a tier that its pool lacks: %v", err)
	}
	// While the nodes do not hear each other nothing is promised.
	r.ok(r.pair.Kill(0))
	r.ok(r.pair.Kill(1))
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	if _, err := r.b.ModifyVolume(ctx, v.ID, backend.Mutable{WriteCache: v1alpha1.WriteBack}); !errors.Is(err, backend.ErrTimeout) {
		t.Fatal(err)
	}
	r.ok(r.pair.StartNode(0))
	r.ok(r.pair.StartNode(1))
	v, err = r.b.ModifyVolume(r.ctx, v.ID, backend.Mutable{WriteCache: v1alpha1.WriteBack})
	r.ok(err)
	if v.WriteCache != v1alpha1.WriteBack {
		t.Fatalf("%+v", v)
	}
}
