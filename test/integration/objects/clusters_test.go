package objects

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/controller"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// Two StorageClusters side by side share nothing: each has its own names, handles, WWIDs and
// capacity, and a volume of one is neither found nor copied in the other.
func TestTwoClusters(t *testing.T) {
	r := start(t, 3*time.Minute)
	gold := r.beside(harness.Options{Dir: filepath.Join(r.pair.Dir, "gold"), InCluster: "gold", Name: "gold-p0"})
	in := func(cluster, name string) backend.CreateVolume {
		req := r.wish(name)
		req.Cluster = cluster
		return req
	}
	seen := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		for cluster, pair := range map[string]*harness.Pair{operator.Cluster: r.pair, "gold": gold} {
			v, err := r.b.CreateVolume(r.ctx, in(cluster, name+" in "+cluster))
			r.ok(err)
			if v.Pairs[0] != pair.Name || v.Cluster != cluster {
				t.Fatalf("%+v is not in %s", v, cluster)
			}
			a, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true})
			r.ok(err)
			if a.TargetIQN != pair.IQN() || seen[v.ID] || seen[a.WWID] {
				t.Fatalf("%+v, %+v: not its own", v, a)
			}
			seen[v.ID], seen[a.WWID] = true, true
			// The number may be the same on both: it is the target that tells them apart.
			if l, err := pair.Client(0).GetLUN(r.ctx, &targetv1.GetLUNRequest{Name: v.ID}); err != nil || l.Wwid != a.WWID || len(l.Mappings) != 1 {
				t.Fatal(l, err)
			}
		}
	}
	// One name is one volume, wherever.
	one := in("gold", "one in "+operator.Cluster)
	if _, err := r.b.CreateVolume(r.ctx, one); !errors.Is(err, backend.ErrExists) {
		t.Fatal(err)
	}
	c := controller.New(r.b, slog.New(slog.DiscardHandler))
	_, err := c.CreateVolume(r.ctx, &csi.CreateVolumeRequest{Name: one.Name, Parameters: map[string]string{"cluster": "gold"}, VolumeCapabilities: []*csi.VolumeCapability{{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}}}})
	if status.Code(err) != codes.AlreadyExists {
		t.Fatalf("a volume of another cluster was given out: %v", err)
	}
	// Copies stay where their source is.
	clone := in("gold", "clone")
	clone.SourceVolume = r.b.VolumeID("one in " + operator.Cluster)
	if _, err := r.b.CreateVolume(r.ctx, clone); !errors.Is(err, backend.ErrInvalid) {
		t.Fatal(err)
	}
	// A cluster that is down does not block the other.
	r.ok(gold.Kill(0))
	r.ok(gold.Kill(1))
	began := time.Now()
	_, err = r.b.CreateVolume(r.ctx, in(operator.Cluster, "three"))
	r.ok(err)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	list, _, err := r.b.ListVolumes(r.ctx, backend.Page{})
	if err != nil || len(list) != 5 {
		t.Fatal(list, err)
	}
	r.ok(gold.StartNode(0))
	r.ok(gold.StartNode(1))
	for _, v := range list {
		r.ok(r.b.Unpublish(r.ctx, v.ID, ""))
		r.ok(r.b.DeleteVolume(r.ctx, v.ID))
	}
	l, err := gold.Client(0).ListLUNs(r.ctx, &targetv1.ListLUNsRequest{})
	if err != nil || len(l.Luns) != 0 || r.luns() != 0 {
		t.Fatal(l, err, r.luns())
	}
}
