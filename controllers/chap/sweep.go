package chap

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// Sweep deletes the credentials on a pair that have been unused for the grace time: of workers
// whose Host is gone, or of all workers if the cluster disables CHAP; and those of other workers
// that have been unused for the spare time. Those of a worker with a LUN of the pair, in spec or
// status, stay. A deletion based on a stale cache is harmless: the credentials are created again
// and sent to the targets, and the worker enrols again.
func (k *Keeper) Sweep(ctx context.Context, c *v1alpha1.StorageCluster, pair string) error {
	all, err := k.secrets(ctx, pair)
	if err != nil || len(all) == 0 {
		return err
	}
	used, err := k.used(ctx, pair)
	if err != nil {
		return err
	}
	for i := range all {
		s := &all[i]
		_, iqn, ok := OfPair(s)
		needed, grace := !ok || used[iqn], k.Grace
		if !needed && c.Spec.Security.CHAP != v1alpha1.CHAPNone {
			hosts, err := k.Hosts(ctx, iqn)
			if err != nil {
				return err
			}
			if len(hosts) > 0 {
				needed, grace = k.Spare == 0, max(k.Spare, k.Grace)
			}
		}
		if !k.expired(unused{s.Name, s.UID}, needed, grace) {
			continue
		}
		if err := k.delete(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// unused is a Secret that is not used.
type unused struct {
	name string
	uid  types.UID
}

// expired reports whether a Secret has been unused for so long.
func (k *Keeper) expired(id unused, needed bool, grace time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now
	if k.Now != nil {
		now = k.Now
	}
	since, idle := k.idle[id]
	switch {
	case needed:
		delete(k.idle, id)
		return false
	case grace == 0:
		return true
	case !idle:
		if k.idle == nil {
			k.idle = map[unused]time.Time{}
		}
		k.idle[id] = now()
		return false
	case now().Sub(since) < grace:
		return false
	}
	delete(k.idle, id)
	return true
}

// Remove deletes all credentials on a pair.
func (k *Keeper) Remove(ctx context.Context, pair string) error {
	all, err := k.secrets(ctx, pair)
	if err != nil {
		return err
	}
	for i := range all {
		if err := k.delete(ctx, &all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) secrets(ctx context.Context, pair string) ([]corev1.Secret, error) {
	l := &corev1.SecretList{}
	if err := k.List(ctx, l, client.InNamespace(k.Namespace), client.MatchingLabels(Labels(pair))); err != nil {
		return nil, fmt.Errorf("CHAP credentials on pair %s: %w", pair, err)
	}
	return l.Items, nil
}

// deleteFormer deletes credentials on a pair that were created for a former worker with the host's
// iSCSI name.
func (k *Keeper) deleteFormer(ctx context.Context, pair string, h *v1alpha1.Host) error {
	s := &corev1.Secret{}
	if err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: SecretName(pair, h.Spec.IQN)}, s); err != nil {
		return client.IgnoreNotFound(err)
	}
	if s.Annotations[annotationHost] == h.Name {
		return nil // the cache was stale
	}
	return k.delete(ctx, s)
}

func (k *Keeper) delete(ctx context.Context, s *corev1.Secret) error {
	uid := types.UID(s.UID)
	if err := k.Delete(ctx, s, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove Secret %s: %w", s.Name, err)
	}
	return nil
}

// used are the iSCSI names that have a LUN of the pair, in spec or status.
func (k *Keeper) used(ctx context.Context, pair string) (map[string]bool, error) {
	out := map[string]bool{}
	units, err := index.Units(ctx, k.Client, index.UnitPair, pair)
	if err != nil {
		return nil, fmt.Errorf("LogicalUnits of pair %s: %w", pair, err)
	}
	for i := range units {
		for _, h := range units[i].Spec.Hosts {
			out[strings.ToLower(h.IQN)] = true
		}
		for _, h := range units[i].Status.Hosts {
			out[h.IQN] = true
		}
	}
	return out, nil
}
