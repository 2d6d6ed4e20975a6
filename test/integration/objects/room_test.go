package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// A worker that reports that it has no room for all LUNs of a striped volume does not get it, and
// nothing of it is mapped there; one that has it keeps it. Volumes of one LUN are counted by the
// scheduler.
func TestStripedVolumesNeedRoomForAllLUNs(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	host := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "worker-a"}, Spec: v1alpha1.HostSpec{IQN: hostA, AttachMode: "Userspace", Profile: "Auto", MaxLUNs: 4}}
	r.ok(r.c.Create(r.ctx, host))
	t.Cleanup(func() { // other tests have workers of the same iSCSI name
		if err := r.c.Delete(context.WithoutCancel(r.ctx), host); err != nil {
			t.Error(err)
		}
	})
	attached := func(n int32) {
		t.Helper()
		var h v1alpha1.Host
		r.ok(r.c.Get(r.ctx, client.ObjectKeyFromObject(host), &h))
		h.Status.Attached = n
		r.ok(r.c.Status().Update(r.ctx, &h))
	}
	v, err := r.b.CreateVolume(r.ctx, r.stripedWish("wide"))
	r.ok(err)
	one := r.create("narrow")
	attached(3)
	err = r.publish(v.ID, hostA)
	if !errors.Is(err, backend.ErrExhausted) {
		t.Fatal(err)
	}
	for _, want := range []string{"2 LUNs", "worker-a has 3 of the 4 LUNs", "node.maxVolumes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if len(r.unit(v.ID).Spec.Hosts) != 0 {
		t.Error("the volume has the host that was refused")
	}
	r.ok(r.allMapped(v.ID))
	r.ok(r.publish(one.ID, hostA))
	r.ok(r.publish(v.ID, hostB)) // nothing is known of this worker
	r.ok(r.b.Unpublish(r.ctx, v.ID, hostB))
	attached(2)
	r.ok(r.publish(v.ID, hostA))
	attached(4)
	r.ok(r.publish(v.ID, hostA))
	r.ok(r.allMapped(v.ID, hostA))
}
