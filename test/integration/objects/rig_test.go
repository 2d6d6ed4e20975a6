// Package objects tests volumes as Kubernetes objects: the driver's backend and the reconcilers
// against a real API server and a real pair, with crashes of either between any two calls.
package objects

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

const mib = 1 << 20

const (
	hostA = "iqn.2026-11.storage.gemel:node.a"
	hostB = "iqn.2026-11.storage.gemel:node.b"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	envtest.Main(m, "../../../config/crd/bases")
}

type rig struct {
	*testing.T
	ctx  context.Context
	cfg  *rest.Config
	c    client.WithWatch
	pair *harness.Pair
	b    *objects.Backend
}

// start runs a pair, and describes it to the API server.
func start(t *testing.T, limit time.Duration) *rig {
	t.Helper()
	return startIn(t, limit, t.TempDir())
}

// startIn is start with the pair's disks in a folder.
func startIn(t *testing.T, limit time.Duration, dir string) *rig {
	t.Helper()
	cfg := envtest.Config(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	r := &rig{T: t, ctx: ctx, cfg: cfg}
	bin, err := harness.Build(ctx, t.TempDir(), "./cmd/gemel-target")
	r.ok(err)
	// An API server and etcd start beside the pair. A node that does not get to run for half a
	// second is excluded, and a session that ends for that cannot come back if the test has
	// replaced its CHAP secrets: what is tested here is not how soon nodes notice each other.
	r.pair, err = harness.New(harness.Options{Dir: dir, Binary: bin, Args: []string{"--lease", "2s"}})
	r.ok(err)
	t.Cleanup(func() {
		if err := r.pair.Close(); err != nil {
			t.Errorf("stop of the pair: %v", err)
		}
		if t.Failed() {
			for i, n := range harness.Names {
				b, _ := os.ReadFile(r.pair.LogFile(i))
				t.Logf("log of node %s:\n%s", n, b[max(0, len(b)-8<<10):])
			}
		}
	})
	r.ok(r.pair.Start(ctx))
	r.c, err = operator.Client(cfg)
	r.ok(err)
	r.ok(operator.AddPair(ctx, r.c, r.pair))
	t.Cleanup(r.clean)
	r.b = objects.New(r.c)
	return r
}

// clean deletes the objects of a test, since all tests share an API server.
func (r *rig) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var luns v1alpha1.LogicalUnitList
	var snaps v1alpha1.LogicalUnitSnapshotList
	var groups v1alpha1.LogicalUnitGroupSnapshotList
	var pairs v1alpha1.TargetPairList
	for _, list := range []client.ObjectList{&luns, &snaps, &groups, &pairs} {
		if err := r.c.List(ctx, list); err != nil {
			r.Error(err)
		}
	}
	var all []client.Object
	for i := range luns.Items {
		all = append(all, &luns.Items[i])
	}
	for i := range groups.Items {
		all = append(all, &groups.Items[i])
	}
	for i := range snaps.Items {
		all = append(all, &snaps.Items[i])
	}
	for i := range pairs.Items {
		all = append(all, &pairs.Items[i])
	}
	for _, o := range all {
		_ = r.c.Delete(ctx, o)
		_ = r.c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	}
}

// operate runs the operator for the rest of the test, with the rights that it has in a cluster.
func (r *rig) operate() {
	r.Helper()
	o, err := operator.Start(r.ctx, envtest.Operator(r.T, r.cfg, envtest.Namespace(r.T, r.cfg), "../../../config/rbac"), r.pair, nil)
	r.ok(err)
	r.Cleanup(func() {
		if err := o.Stop(); err != nil {
			r.Errorf("stop of the operator: %v", err)
		}
	})
}

// beside starts a second pair, and runs an operator of both for the rest of the test.
func (r *rig) beside(options harness.Options) *harness.Pair {
	r.Helper()
	options.Binary = r.pair.Binary
	second, err := harness.New(options)
	r.ok(err)
	r.Cleanup(func() {
		if err := second.Close(); err != nil {
			r.Errorf("stop of the second pair: %v", err)
		}
	})
	r.ok(second.Start(r.ctx))
	r.ok(operator.AddPair(r.ctx, r.c, second))
	wrap, err := operator.Several(r.c, second)
	r.ok(err)
	o, err := operator.Start(r.ctx, r.cfg, r.pair, wrap)
	r.ok(err)
	r.Cleanup(func() {
		if err := o.Stop(); err != nil {
			r.Errorf("stop of the operator: %v", err)
		}
	})
	return second
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// wish is a plain volume of one host at a time.
func (r *rig) wish(name string) backend.CreateVolume {
	return backend.CreateVolume{ID: r.b.VolumeID(name), Name: name, Size: 64 * mib, Cluster: operator.Cluster, Labels: map[string]string{
		v1alpha1.DiskLabelName: name, v1alpha1.DiskLabelFSType: "xfs", v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle, v1alpha1.DiskLabelPV: name,
		v1alpha1.DiskLabelPVC: "data", v1alpha1.DiskLabelNamespace: "team"}}
}

func (r *rig) create(name string) backend.Volume {
	r.Helper()
	v, err := r.b.CreateVolume(r.ctx, r.wish(name))
	r.ok(err)
	return v
}

// unit reads a LogicalUnit.
func (r *rig) unit(id string) *v1alpha1.LogicalUnit {
	r.Helper()
	var lu v1alpha1.LogicalUnit
	r.ok(r.c.Get(r.ctx, client.ObjectKey{Name: id}, &lu))
	return &lu
}

// edit changes a LogicalUnit as an administrator would.
func (r *rig) edit(id string, change func(*v1alpha1.LogicalUnit)) error {
	for {
		lu := r.unit(id)
		change(lu)
		err := r.c.Update(r.ctx, lu)
		if err == nil || !strings.Contains(err.Error(), "object has been modified") {
			return err
		}
	}
}

// forget deletes an object, and not what it stands for, as the status of such an object says: the
// deletion first, because the operator gives an object that is not being deleted its finalizer
// back.
func (r *rig) forget(o client.Object) {
	r.Helper()
	r.ok(r.c.Delete(r.ctx, o))
	r.ok(harness.Wait(r.ctx, o.GetName()+" is gone", func() (bool, string) {
		err := r.c.Get(r.ctx, client.ObjectKeyFromObject(o), o)
		if err == nil {
			o.SetFinalizers(nil)
			err = r.c.Update(r.ctx, o)
		}
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	}))
}

// lun asks the pair for a LUN by the name of its object; nil if there is none.
func (r *rig) lun(name string) *targetv1.LUN {
	r.Helper()
	l, err := r.pair.Client(0).GetLUN(r.ctx, &targetv1.GetLUNRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	r.ok(err)
	return l
}

// luns counts what the pair holds.
func (r *rig) luns() int {
	r.Helper()
	l, err := r.pair.Client(0).ListLUNs(r.ctx, &targetv1.ListLUNsRequest{})
	r.ok(err)
	return len(l.Luns)
}

func (r *rig) snapshots() int {
	r.Helper()
	l, err := r.pair.Client(0).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{})
	r.ok(err)
	return len(l.Snapshots)
}

// mapped are the hosts of a LUN as the pair has them.
func (r *rig) mapped(name string) (out []string) {
	r.Helper()
	for _, m := range r.lun(name).GetMappings() {
		out = append(out, m.HostIqn)
	}
	return out
}

// until polls a LogicalUnit.
func (r *rig) until(id, what string, ok func(*v1alpha1.LogicalUnit) bool) *v1alpha1.LogicalUnit {
	r.Helper()
	var lu *v1alpha1.LogicalUnit
	r.ok(harness.Wait(r.ctx, what, func() (bool, string) {
		lu = r.unit(id)
		return ok(lu), fmt.Sprintf("%+v", lu.Status)
	}))
	return lu
}

func (r *rig) publish(id, host string) error {
	_, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
	return err
}
