package objects

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/flakyapi"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// The operator dies at any of its calls to the API server while it makes credentials, and while it
// replaces them: in the end Secret, status and targets have the same credentials.
func TestCrashesWithCredentials(t *testing.T) {
	r := start(t, 3*time.Minute)
	g := &guarded{rig: r, namespace: envtest.Namespace(t, r.cfg)}
	r.ok(operator.AddCluster(r.ctx, r.c, v1alpha1.CHAPMutual))
	host := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "worker-a"}, Spec: v1alpha1.HostSpec{IQN: hostA, AttachMode: "Userspace"}}
	r.ok(r.c.Create(r.ctx, host))
	t.Cleanup(func() {
		_ = r.c.Delete(context.Background(), host)
		_ = r.c.Delete(context.Background(), &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}})
	})
	p, err := flakyapi.New(r.cfg)
	r.ok(err)
	defer p.Close()
	c := &sticky{crasher: apiCrash{p}}
	run := r.operated(c, func() (*operator.Operator, error) {
		o, err := operator.StartWith(r.ctx, p.Config(), r.pair, nil, operator.Enrolment{Namespace: g.namespace})
		if err != nil { // its first question went out on the connection that broke
			o, err = operator.StartWith(r.ctx, p.Config(), r.pair, nil, operator.Enrolment{Namespace: g.namespace})
		}
		return o, err
	})
	id, key := r.b.VolumeID("pvc"), client.ObjectKey{Namespace: g.namespace, Name: chap.SecretName("p0", hostA)}
	r.ok(run(step{"create", func(ctx context.Context, b *objects.Backend) error {
		_, err := b.CreateVolume(ctx, r.wish("pvc"))
		return err
	}, nil, true}))
	publish := func(ctx context.Context, b *objects.Backend) error {
		_, err := b.Publish(ctx, backend.Publish{VolumeID: id, HostIQN: hostA, Exclusive: true})
		return err
	}
	secret := func() *chap.Credentials {
		t.Helper()
		s := &corev1.Secret{}
		r.ok(r.c.Get(r.ctx, key, s))
		c, err := chap.Of(s)
		r.ok(err)
		return c
	}
	agreed := func() error {
		c := secret()
		a, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: id, HostIQN: hostA, Exclusive: true}) // it is: this only tells how
		if err != nil {
			return err
		}
		if h := r.unit(id).Status.Hosts; len(h) != 1 || h[0].CHAPUser != c.User {
			return fmt.Errorf("the status says %+v, the Secret %v", h, c)
		}
		return g.login(a, 0, enroll.Answer{User: c.User, Secret: c.Secret, MutualUser: c.MutualUser, MutualSecret: c.MutualSecret})
	}
	replace := func(ctx context.Context, _ *objects.Backend) error {
		before := secret()
		if err := r.c.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
			return err
		}
		for r.unit(id).Status.Hosts[0].CHAPUser == before.User {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	}
	detach := func(ctx context.Context, b *objects.Backend) error {
		if err := b.Unpublish(ctx, id, hostA); err != nil {
			return err
		}
		return r.c.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
	}
	total := 0
	for _, landed := range []bool{false, true} {
		for n, hit := 1, true; hit; n++ {
			hit = false
			for _, s := range []step{{"attach", publish, agreed, false}, {"replace", replace, agreed, false}} {
				// Armed when the operator runs: what it does at its start is not what is tested
				// here.
				do := s.do
				s.do = func(ctx context.Context, b *objects.Backend) error {
					c.arm(n, landed)
					return do(ctx, b)
				}
				err := run(s)
				if r.survived(c, s, n, landed, err) {
					hit = true
					total++
				}
			}
			r.ok(run(step{"detach", detach, nil, false}))
			if n > 20 {
				t.Fatal("there is no end of calls")
			}
		}
	}
	t.Logf("%d crashes", total)
	if total < 8 {
		t.Errorf("only %d crashes", total)
	}
}
