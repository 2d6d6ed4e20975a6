package pair

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/pki"
)

// scene is a task of the operator.
type scene struct {
	name  string
	lun   bool // the pair has a LUN
	calm  bool // starts with a running pair
	act   func(s *stage)
	after func(s *stage) error // checks the end state
}

var scenes = []scene{
	{"found", false, false, func(*stage) {}, func(s *stage) error {
		p := s.get()
		if p.Spec.Nodes[0].Worker == "" || p.Spec.Nodes[1].Worker == "" || p.Spec.Nodes[0].Address == "" || p.Spec.Nodes[1].Address == "" {
			return fmt.Errorf("%+v", p.Spec)
		}
		for _, o := range s.parts() {
			if err := s.c.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
		}
		if c := s.claims(); len(c) != 2 {
			return fmt.Errorf("claims %v", c)
		}
		return s.upToDate()
	}},
	{"roll", true, true, func(s *stage) { s.image("gemel:2") }, func(s *stage) error {
		for _, n := range Nodes {
			if len(s.seen[n]) != 1 {
				return fmt.Errorf("pod of %s was taken down %d times", n, len(s.seen[n]))
			}
			p := &corev1.Pod{}
			if err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: PodName(s.name, n)}, p); err != nil || p.Spec.Containers[0].Image != "gemel:2" {
				return fmt.Errorf("pod of %s: %v %v", n, p.Spec.Containers, err)
			}
		}
		return s.upToDate()
	}},
	{"pool", true, true, func(s *stage) {
		s.ok(client.IgnoreAlreadyExists(s.c.Create(s.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: "example.org/local",
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})))
		s.addPool("fast", "made")
	}, func(s *stage) error {
		want := []string{ClaimName(s.name, "a", 0), PoolClaim(s.name, "a", 0, "fast"), ClaimName(s.name, "b", 0), PoolClaim(s.name, "b", 0, "fast")}
		if got := s.claims(); !slices.Equal(got, want) {
			return fmt.Errorf("claims %v", got)
		}
		for _, n := range Nodes {
			if len(s.seen[n]) != 1 {
				return fmt.Errorf("pod of %s was taken down %d times", n, len(s.seen[n]))
			}
			p := &corev1.Pod{}
			if err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: PodName(s.name, n)}, p); err != nil ||
				!slices.Contains(p.Spec.Containers[0].Args, "--backing-volume=fast=/volumes/fast/gemel") {
				return fmt.Errorf("pod of %s: %v %v", n, p.Spec.Containers, err)
			}
		}
		return s.upToDate()
	}},
	{"replace", true, true, func(s *stage) {
		s.down["b"] = true // its disk is lost
		p := s.get()
		p.Spec.Replace = &v1alpha1.Replace{Node: "b", Worker: "worker-3"}
		s.ok(s.c.Update(s.ctx, p))
	}, func(s *stage) error {
		want := []string{ClaimName(s.name, "a", 0), ClaimName(s.name, "b", 0), ClaimName(s.name, "b", 1)}
		p := s.get()
		if got := s.claims(); !slices.Equal(got, want) || p.Spec.Nodes[1].Disk != 1 || p.Spec.Nodes[1].Worker != "worker-3" || p.Status.Replaced == nil {
			return fmt.Errorf("%v %+v", got, p.Spec)
		}
		if len(s.seen["a"]) != 0 || len(s.seen["b"]) != 1 {
			return fmt.Errorf("pods taken down: %v", s.seen)
		}
		return s.upToDate()
	}},
	{"renew", false, true, func(s *stage) {
		var err error
		s.old, err = s.certificates()
		s.ok(err)
		for _, r := range s.ops {
			r.Now = func() time.Time { return time.Now().Add(pki.LeafValidity * 7 / 10) }
		}
	}, func(s *stage) error {
		now, err := s.certificates()
		for name, c := range now {
			if s.old[name] == c {
				err = errors.Join(err, fmt.Errorf("%s is the old one", name))
			}
		}
		return err
	}},
	{"delete", false, true, func(s *stage) { s.ok(s.c.Delete(s.ctx, s.get())) }, func(s *stage) error {
		if s.tryGet() != nil {
			return errors.New("it is still there")
		}
		for _, o := range s.parts() {
			if err := s.c.Get(s.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T %s stays: %w", o, o.GetName(), err)
			}
		}
		if c := s.claims(); len(c) != 2 {
			return fmt.Errorf("claims %v", c)
		}
		return nil
	}},
}

func (s *stage) image(name string) {
	s.t.Helper()
	c := &v1alpha1.StorageCluster{}
	s.ok(s.c.Get(s.ctx, client.ObjectKey{Name: s.name}, c))
	c.Spec.Image = name
	s.ok(s.c.Update(s.ctx, c))
}

// upToDate: the pair has its spec, and no node is drained.
func (s *stage) upToDate() error {
	if n := s.drains.node(); n != "" {
		return fmt.Errorf("node %s is still drained", n)
	}
	c := meta.FindStatusCondition(s.get().Status.Conditions, v1alpha1.ConditionUpToDate)
	if c == nil || c.Status != "True" || c.ObservedGeneration != s.get().Generation {
		return fmt.Errorf("%+v", c)
	}
	return nil
}

// certificates of both nodes and of the operator.
func (s *stage) certificates() (map[string]string, error) {
	ca := &corev1.Secret{}
	if err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: AuthoritySecret(s.name)}, ca); err != nil {
		return nil, err
	}
	a, err := pki.Load(pki.Pair{Cert: ca.Data[corev1.TLSCertKey], Key: ca.Data[corev1.TLSPrivateKeyKey]})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, uri := range map[string]string{ControlSecret(s.name): pki.ControlURI(s.name), NodeName(s.name, "a"): pki.TargetURI(s.name, s.name, "a"), NodeName(s.name, "b"): pki.TargetURI(s.name, s.name, "b")} {
		x := &corev1.Secret{}
		if err := s.c.Get(s.ctx, client.ObjectKey{Namespace: s.r.Namespace, Name: name}, x); err != nil {
			return nil, err
		}
		if a.Due(x.Data[corev1.TLSCertKey], uri, time.Now()) {
			return nil, fmt.Errorf("%s is not of the authority", name)
		}
		out[name] = string(x.Data[corev1.TLSCertKey])
	}
	return out, nil
}
