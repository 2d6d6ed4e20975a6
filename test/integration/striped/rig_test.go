// Package striped has no code. Its tests attach striped volumes of a real pair as a worker does.
package striped

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace"
	"github.com/gemel-storage/gemel/internal/pairclient"
	"github.com/gemel-storage/gemel/internal/stripe"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

const (
	mib  = 1 << 20
	host = "iqn.2026-11.storage.gemel.test:striped"
	leg  = 64 * mib // of each LUN
)

var layout = stripe.Layout{Count: 4, Size: 64 << 10}

// rig is a pair with the LUNs of a volume, every second one owned by node b.
type rig struct {
	*testing.T
	ctx      context.Context
	lab      *lab.Lab
	target   string // the program
	pair     *harness.Pair
	client   *pairclient.Client
	attacher *userspace.Attacher
	luns     []string
	volume   attach.Attachment
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it attaches loop devices")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	r := &rig{T: t, ctx: ctx}
	l, swept, err := lab.New("")
	r.must(err)
	r.lab = l
	for _, s := range swept {
		t.Logf("removed what an earlier run had left: %s", s)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	r.target, err = l.Build(ctx, harness.Root(), "./cmd/gemel-target")
	r.must(err)
	driver, err := l.Build(ctx, harness.Root(), "./cmd/gemel-csi")
	r.must(err)
	r.pair, err = harness.New(harness.Options{Dir: l.Path("pair"), Binary: r.target})
	r.must(err)
	t.Cleanup(func() {
		if err := r.pair.Close(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	r.must(r.pair.Start(ctx))
	r.client, err = pairclient.New(pairclient.Config{Endpoints: r.pair.Control[:], Patience: 3 * time.Second})
	r.must(err)
	t.Cleanup(func() { _ = r.client.Close() })
	r.attacher, err = userspace.New(userspace.Config{Dir: l.Path("attach"), Command: []string{driver, "attach-holder"}, OpenLimit: 5 * time.Second})
	r.must(err)
	t.Cleanup(r.purge)
	for i := range layout.Count {
		id := uuid.NewString()
		labels := map[string]string{}
		(&v1alpha1.Leg{Of: volumeName, UUID: uuid.NewString(), Number: int32(i), Striping: v1alpha1.Striping{LUNs: int32(layout.Count), StripeBytes: int32(layout.Size)}}).SetDiskLabels(labels)
		_, err := r.client.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: v1alpha1.LegName(volumeName, i), SizeBytes: leg, PreferredNode: harness.Names[i%2], Labels: labels})
		r.must(err)
		r.luns = append(r.luns, id)
	}
	r.publish()
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// publish maps all LUNs to this machine, and describes the volume.
func (r *rig) publish() {
	r.Helper()
	r.volume = attach.Attachment{VolumeID: "volume", HostIQN: host, Stripe: layout.Size}
	for _, id := range r.luns {
		m, err := r.client.MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
		r.must(err)
		r.volume.TargetIQN, r.volume.Portals = m.TargetIqn, nil
		for _, p := range m.Portals {
			r.volume.Portals = append(r.volume.Portals, p.Address)
		}
		r.volume.Generation = max(r.volume.Generation, m.Generation)
		r.volume.Legs = append(r.volume.Legs, attach.Leg{LUN: uint16(m.Lun), WWID: m.Wwid})
	}
}

func (r *rig) unmap(lun int) {
	r.Helper()
	_, err := r.client.UnmapHost(r.ctx, &targetv1.UnmapHostRequest{LunUuid: r.luns[lun], HostIqn: host})
	r.must(err)
}

// open attaches the volume and opens its device, without the page cache of this machine.
func (r *rig) open() *os.File {
	r.Helper()
	// Through the publish context, as it comes to a worker.
	a, err := attach.FromPublishContext(r.volume.VolumeID, r.volume.PublishContext())
	r.must(err)
	device, err := r.attacher.Attach(r.ctx, a)
	r.must(err)
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_DIRECT, 0)
	r.must(err)
	r.Cleanup(func() { _ = f.Close() })
	return f
}

// image is the LUN's file at a node.
func (r *rig) image(node, lun int) []byte {
	r.Helper()
	b, err := os.ReadFile(filepath.Join(r.pair.State[node], "volumes", "default", "luns", r.luns[lun]+".img"))
	r.must(err)
	return b
}

// purge takes away what a test that has failed has left, while the pair still serves.
func (r *rig) purge() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.attacher.Purge(ctx, r.volume.VolumeID); err != nil {
		r.Error(err)
	}
}

// pages is memory that a request without the page cache may use.
func (r *rig) pages(n int) []byte {
	r.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	r.must(err)
	r.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}
