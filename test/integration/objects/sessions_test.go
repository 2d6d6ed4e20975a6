package objects

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// How many sessions a worker makes is what the volume says, else what the worker's Host says, else
// one; a change counts from the next publish on.
func TestSessionsOfAPublish(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	host := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "worker-a"}, Spec: v1alpha1.HostSpec{IQN: hostA, AttachMode: "Userspace", Profile: "Auto"}}
	r.ok(r.c.Create(r.ctx, host))
	t.Cleanup(func() { // other tests have workers of the same iSCSI name
		if err := r.c.Delete(context.WithoutCancel(r.ctx), host); err != nil {
			t.Error(err)
		}
	})
	four := r.wish("four")
	four.Sessions = 4
	v, err := r.b.CreateVolume(r.ctx, four)
	r.ok(err)
	wide := r.stripedWish("wide")
	wide.Sessions = 2
	w, err := r.b.CreateVolume(r.ctx, wide)
	r.ok(err)
	one := r.create("plain")
	sessions := func(id, host string, want int) {
		t.Helper()
		a, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
		r.ok(err)
		if a.SessionCount() != want {
			t.Errorf("%d sessions, not %d", a.SessionCount(), want)
		}
		r.ok(r.b.Unpublish(r.ctx, id, host))
	}
	sessions(v.ID, hostA, 4)
	sessions(w.ID, hostA, 2)
	sessions(one.ID, hostA, 1)
	r.ok(r.c.Get(r.ctx, client.ObjectKeyFromObject(host), host))
	host.Spec.Sessions = 3
	r.ok(r.c.Update(r.ctx, host))
	sessions(v.ID, hostA, 4)
	sessions(one.ID, hostA, 3)
	sessions(one.ID, hostB, 1) // nothing is known of this worker
	lu := r.unit(v.ID)
	lu.Spec.Sessions = 1
	r.ok(r.c.Update(r.ctx, lu))
	sessions(v.ID, hostA, 1)
	for _, n := range []int32{-1, 9} {
		lu, h := r.unit(v.ID), host.DeepCopy()
		lu.Spec.Sessions, h.Spec.Sessions = n, n
		if err := r.c.Update(r.ctx, lu); err == nil {
			t.Errorf("a volume may have %d sessions", n)
		}
		if err := r.c.Update(r.ctx, h); err == nil {
			t.Errorf("a worker may have %d sessions", n)
		}
	}
}
