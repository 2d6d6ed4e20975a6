package objects

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// pairIs writes what the operator says of a pair; this rig has no reconciler of pairs.
func (r *rig) pairIs(name string, c metav1.Condition) {
	r.Helper()
	p := &v1alpha1.TargetPair{}
	r.ok(r.c.Get(r.ctx, client.ObjectKey{Name: name}, p))
	before := p.DeepCopy()
	c.Type = v1alpha1.ConditionReady
	meta.SetStatusCondition(&p.Status.Conditions, c)
	r.ok(r.c.Status().Patch(r.ctx, p, client.MergeFrom(before)))
}

// Calls for volumes of a pair that does not serve fail at once with its reason, and do not keep
// those of other pairs waiting. What they asked for is done when the pair is back.
func TestCallsBesideADeadPair(t *testing.T) {
	const n = 12
	r := start(t, 3*time.Minute)
	dead := r.beside(harness.Options{Dir: filepath.Join(r.pair.Dir, "dead"), InCluster: "dead", Name: "dead-p0"})
	var ids []string
	for i := range n {
		req := r.wish("on the dead pair " + string(rune('a'+i)))
		req.Cluster = "dead"
		v, err := r.b.CreateVolume(r.ctx, req)
		r.ok(err)
		ids = append(ids, v.ID)
	}
	alive := r.create("on the other pair")
	r.ok(r.b.Unpublish(r.ctx, ids[0], ""))
	_, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: ids[0], HostIQN: hostA, Exclusive: true})
	r.ok(err)

	r.ok(dead.Kill(0))
	r.ok(dead.Kill(1))
	r.pairIs("dead-p0", metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPairDown, Message: "no node serves: neither node answers"})
	publish := func(id, host string) error {
		_, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: id, HostIQN: host, Exclusive: true})
		return err
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			began, err := time.Now(), error(nil)
			if i == 0 {
				err = r.b.Unpublish(r.ctx, id, hostA)
			} else {
				err = publish(id, hostB)
			}
			if took := time.Since(began); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "pair dead-p0 does not serve: no node serves: neither node answers") || took > 5*time.Second {
				t.Errorf("after %v: %v", took, err)
			}
		})
	}
	wg.Wait()
	began := time.Now()
	r.ok(publish(alive.ID, hostA))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the other pair's volume took %v", took)
	}

	r.ok(dead.StartNode(0))
	r.ok(dead.StartNode(1))
	r.pairIs("dead-p0", metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady})
	r.until(ids[0], "it is fenced", func(lu *v1alpha1.LogicalUnit) bool { return len(lu.Status.Hosts) == 0 })
	for _, id := range ids[1:] {
		r.until(id, "it is published", func(lu *v1alpha1.LogicalUnit) bool { return lu.Status.Host(hostB) != nil })
		r.ok(publish(id, hostB))
	}
}
