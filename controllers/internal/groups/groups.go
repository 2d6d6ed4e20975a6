// Package groups finds the ConsistencyGroup of a claim, and the claims and LUNs of a
// ConsistencyGroup, from caches alone.
package groups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/placement"
)

// ErrConflict: more than one ConsistencyGroup selects the claim.
var ErrConflict = errors.New("several ConsistencyGroups select the claim")

// Finder of groups.
type Finder struct {
	Claims  client.Reader // of the metadata of claims in all namespaces
	Objects client.Reader // of PersistentVolumes, LogicalUnits and ConsistencyGroups, with VolumeIndex and UnitIndex
}

// Claim of a group.
type Claim struct {
	Name   string
	Labels labels.Set
	// Bound: it has a PersistentVolume, whether Gemel's or not.
	Bound bool
	// Foreign is what it is bound to instead of a volume of Gemel; empty: nothing else.
	Foreign string
	// LUN of the claim; nil: none is known yet. It may exist before the claim is bound. It belongs
	// to the cache and must not be changed.
	LUN *v1alpha1.LogicalUnit
}

// Selector of a group. An empty one is refused: it would select every claim of the namespace, which
// is mostly a selector that was forgotten, and no second group could exist in the namespace.
func Selector(g *v1alpha1.ConsistencyGroup) (labels.Selector, error) {
	s, err := metav1.LabelSelectorAsSelector(&g.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	if s.Empty() {
		return nil, errors.New("spec.selector is empty, and would select every claim of the namespace: set matchLabels or matchExpressions, and give the claims that belong together a label")
	}
	return s, nil
}

// ClaimsOf the group, by name. Those that are being deleted count until they are gone: pods may
// still use them.
func (f *Finder) ClaimsOf(ctx context.Context, g *v1alpha1.ConsistencyGroup) ([]Claim, error) {
	selector, err := Selector(g)
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	if err := f.Claims.List(ctx, list, client.InNamespace(g.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("claims of namespace %s: %w", g.Namespace, err)
	}
	out := make([]Claim, 0, len(list.Items))
	for i := range list.Items {
		c := &list.Items[i]
		x := Claim{Name: c.Name, Labels: c.Labels}
		if err := f.find(ctx, &x, c); err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Claim) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// find sets the volume and the LUN of a claim. A claim that is not bound yet may have a LUN, which
// was made for its UID: a claim of the same name before it had another one.
func (f *Finder) find(ctx context.Context, x *Claim, c *metav1.PartialObjectMetadata) error {
	pv, err := f.volume(ctx, claimKey(c.Namespace, c.Name), c.UID)
	switch {
	case err != nil:
		return err
	case pv == nil:
		x.LUN, err = f.requested(ctx, c)
		return err
	}
	x.Bound = true
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		x.Foreign = "PersistentVolume " + pv.Name
		if pv.Spec.CSI != nil {
			x.Foreign += " of driver " + pv.Spec.CSI.Driver
		}
		return nil
	}
	lu := &v1alpha1.LogicalUnit{}
	if err := f.Objects.Get(ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, lu, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("LogicalUnit %s: %w", pv.Spec.CSI.VolumeHandle, err)
	}
	x.LUN = lu
	return nil
}

// volume is the PersistentVolume that is bound to the claim with a UID, or to any claim without.
func (f *Finder) volume(ctx context.Context, key string, uid types.UID) (*corev1.PersistentVolume, error) {
	list := &corev1.PersistentVolumeList{}
	if err := f.Objects.List(ctx, list, client.MatchingFields{VolumeIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("PersistentVolumes: %w", err)
	}
	for i := range list.Items {
		if ref := list.Items[i].Spec.ClaimRef; ref != nil && ref.UID != "" && (uid == "" || ref.UID == uid) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

func (f *Finder) requested(ctx context.Context, c *metav1.PartialObjectMetadata) (*v1alpha1.LogicalUnit, error) {
	list := &v1alpha1.LogicalUnitList{}
	if err := f.Objects.List(ctx, list, client.MatchingFields{UnitIndex: claimKey(c.Namespace, c.Name)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("LogicalUnits: %w", err)
	}
	for i := range list.Items {
		if madeFor(&list.Items[i], c.UID) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// ClaimOf a LUN is the claim that its PersistentVolume is bound to, or as long as it is bound to
// none, the claim that it was requested for; both names are empty if it is not known.
func (f *Finder) ClaimOf(ctx context.Context, lu *v1alpha1.LogicalUnit) (namespace, name string, err error) {
	pv, err := f.volume(ctx, lu.Name, "")
	switch {
	case err != nil:
		return "", "", err
	case pv != nil:
		return pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name, nil
	case lu.Spec.Volume != nil:
		return lu.Spec.Volume.Namespace, lu.Spec.Volume.PVC, nil
	}
	return "", "", nil
}

// Selecting are the groups that select a claim, by name; none if the claim does not exist.
func (f *Finder) Selecting(ctx context.Context, namespace, claim string) ([]*v1alpha1.ConsistencyGroup, error) {
	if namespace == "" || claim == "" {
		return nil, nil
	}
	all, err := f.InNamespace(ctx, namespace)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	c := &metav1.PartialObjectMetadata{}
	c.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err := f.Claims.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim}, c, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return all.Matching(c.Labels), nil
}

// Of the claim is the group that selects it; nil if there is none. ErrConflict.
func (f *Finder) Of(ctx context.Context, namespace, claim string) (*v1alpha1.ConsistencyGroup, error) {
	switch found, err := f.Selecting(ctx, namespace, claim); {
	case err != nil || len(found) == 0:
		return nil, err
	case len(found) > 1:
		return nil, fmt.Errorf("%w %s/%s: %s and %s", ErrConflict, namespace, claim, found[0].Name, found[1].Name)
	default:
		return found[0], nil
	}
}

// MemberOf a group is a LUN as the choice of homes sees it, for a claim whose LUN has a place.
func MemberOf(claim string, lu *v1alpha1.LogicalUnit, now time.Time) placement.Member {
	s, at := &lu.Spec, lu.Spec.Placement
	m := placement.Member{Name: claim, Pair: at.Pair, Owner: lu.Status.Owner,
		Home: cmp.Or(s.PinnedNode, s.PreferredNode, lu.Status.PinnedNode, lu.Status.PreferredNode, at.Home)}
	switch pin := cmp.Or(s.PinnedNode, lu.Status.PinnedNode); {
	case s.Striped != nil: // it has no home of its own, and counts at no node
		m.Home, m.Owner, m.Fixed = "", "", "the volume is striped: its LUNs are spread over both nodes"
	case pin != "":
		m.Fixed = "the LUN is pinned to node " + pin
	case s.PreferredNode != "":
		m.Fixed = "preferredNode of the LUN is node " + s.PreferredNode
	case lu.Status.HeldUntil != nil && lu.Status.HeldUntil.After(now):
		m.Fixed = fmt.Sprintf("a transfer by a person holds the LUN at node %s until %s", lu.Status.Owner, lu.Status.HeldUntil.UTC().Format(time.RFC3339))
	}
	return m
}

// Members are the claims whose LUNs have a place.
func Members(claims []Claim, now time.Time) (out []placement.Member) {
	for _, c := range claims {
		if c.LUN != nil && c.LUN.Spec.Placement != nil {
			out = append(out, MemberOf(c.Name, c.LUN, now))
		}
	}
	return out
}
