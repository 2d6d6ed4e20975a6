package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Memory applies objects, and leaves an object out that is as its last application left it: the
// same is to be applied, and the object has not changed since, which its resource version says.
// So a reconcile that finds nothing to do writes nothing. What it compares with comes from the
// client, whose cache may be behind; then an object is applied once more than necessary, or, if
// somebody has just changed it, with the event of that change. A Memory is safe for concurrent use.
type Memory struct {
	Client  client.Client
	Manager string // the field manager
	// Whole are the kinds that the client's cache has as a whole. Of others it is asked for the
	// metadata only.
	Whole []client.Object

	mu   sync.Mutex
	last map[memoryKey]applied
}

type memoryKey struct {
	kind schema.GroupVersionKind
	name client.ObjectKey
}

type applied struct {
	sum     [sha256.Size]byte // of what was applied
	version string            // the resource version that the object had then
}

// Objects applies what is not as it was applied last. An error does not keep the later objects from
// being applied.
func (m *Memory) Objects(ctx context.Context, objs ...*unstructured.Unstructured) error {
	var due []*unstructured.Unstructured
	sums := map[*unstructured.Unstructured][sha256.Size]byte{}
	for _, u := range objs {
		raw, err := json.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		sums[u] = sha256.Sum256(raw)
		same, err := m.unchanged(ctx, u, sums[u])
		if err != nil {
			return fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		if !same {
			due = append(due, u)
		}
	}
	err := Objects(ctx, m.Client, m.Manager, due...) // which reads the answers into the objects
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = map[memoryKey]applied{}
	}
	for _, u := range due {
		if err == nil {
			m.last[keyOf(u)] = applied{sums[u], u.GetResourceVersion()}
		} else { // which of them failed does not matter
			delete(m.last, keyOf(u))
		}
	}
	return err
}

func keyOf(u *unstructured.Unstructured) memoryKey {
	return memoryKey{u.GroupVersionKind(), client.ObjectKeyFromObject(u)}
}

// unchanged reports whether an object is as it was applied last, and forgets one that has gone.
func (m *Memory) unchanged(ctx context.Context, u *unstructured.Unstructured, sum [sha256.Size]byte) (bool, error) {
	k := keyOf(u)
	m.mu.Lock()
	was, ok := m.last[k]
	m.mu.Unlock()
	if !ok || was.sum != sum {
		return false, nil
	}
	now, err := m.reads(k.kind)
	if err != nil {
		return false, err
	}
	switch err := m.Client.Get(ctx, k.name, now); {
	case apierrors.IsNotFound(err):
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.last, k)
		return false, nil
	case err != nil:
		return false, err
	}
	return now.GetResourceVersion() == was.version, nil
}

// reads is an object for what is read of a kind.
func (m *Memory) reads(kind schema.GroupVersionKind) (client.Object, error) {
	for _, o := range m.Whole {
		if gvk, err := m.Client.GroupVersionKindFor(o); err != nil {
			return nil, err
		} else if gvk == kind {
			return o.DeepCopyObject().(client.Object), nil
		}
	}
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o, nil
}
