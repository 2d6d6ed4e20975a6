package pair

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A member whose disk is lost gets another claim. Its node is started with the id of the lost
// directory, and copies from the other node what was there. The claim that was there is kept.
//
// Crash windows: the number of the new claim is recorded with the request before the claim is made,
// so that a request makes one claim.

// Annotations of the claims of members that were replaced.
const (
	annotationVolume   = "gemel.storage/volume-id" // of the directory on it, as the node has said
	annotationReplaces = "gemel.storage/replaces"  // the id of the lost directory whose place it takes
)

// replacedMark is the value of annotationEmpty of a claim whose place another one has taken.
const replacedMark = "replaced"

// claimNumber is how many claims a member has had before this one; ok is false for a name that is
// none of the member's.
func claimNumber(name, first string) (n int, ok bool) {
	if name == first {
		return 0, true
	}
	text, is := strings.CutPrefix(name, first+".r")
	n, err := strconv.Atoi(text)
	return n, is && err == nil && n > 0
}

// replaceMember makes the claim that takes the place of a member's.
func (r *Reconciler) replaceMember(ctx context.Context, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, want *v1alpha1.Replace) error {
	pool, name, _ := strings.Cut(want.Member, "/")
	first := MemberClaim(p.Name, n.Name, n.Disk, pool, name)
	number, recorded := strings.CutPrefix(p.Annotations[annotationReplacing], replaceKey(want)+"#")
	if !recorded {
		claims, err := r.memberClaims(ctx, p, n)
		if err != nil {
			return err
		}
		claim := claims[pool][name]
		if claim == nil || claim.Spec.VolumeName == "" {
			return waiting(v1alpha1.ReasonInvalid, "spec.replace.member: node %s has no member %s; status.nodes[].members has those that it has, as pool/name", n.Name, want.Member)
		}
		if claim.Annotations[annotationVolume] == "" {
			return waiting(v1alpha1.ReasonInvalid, "spec.replace.member: the id of member %s of node %s was never seen, so the node cannot be told what is lost: replace the node (leave member out)", want.Member, n.Name)
		}
		v := r.observe(ctx, p)
		other := &v.nodes[slices.IndexFunc(v.nodes[:], func(x nodeView) bool { return x.name != n.Name })]
		if !other.serves() {
			return waiting(v1alpha1.ReasonInUse, "spec.replace: member %s of node %s is not replaced while node %s does not serve, because its data is copied from that node (%s)",
				want.Member, n.Name, other.name, reasons(v))
		}
		k, _ := claimNumber(claim.Name, first)
		number = strconv.Itoa(k + 1)
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[annotationReplacing] = replaceKey(want) + "#" + number
		if err := r.Update(ctx, p); err != nil {
			return err
		}
	}
	return r.claimInPlaceOf(ctx, p, n, want, first, number)
}

// claimInPlaceOf makes the claim of a number, like the one before it, which is marked.
func (r *Reconciler) claimInPlaceOf(ctx context.Context, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, want *v1alpha1.Replace, first, number string) error {
	k, err := strconv.Atoi(number)
	if err != nil || k < 1 {
		return waiting(v1alpha1.ReasonInvalid, "the annotation %s of the TargetPair is unreadable: remove it, and request the replacement again", annotationReplacing)
	}
	before := first
	if k > 1 {
		before = first + ".r" + strconv.Itoa(k-1)
	}
	old := &corev1.PersistentVolumeClaim{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: before}, old); err != nil {
		return fmt.Errorf("spec.replace.member: claim %s: %w", before, err)
	}
	claim := &corev1.PersistentVolumeClaim{}
	claim.Name, claim.Namespace, claim.Labels = first+".r"+number, r.Namespace, old.Labels
	claim.Annotations = map[string]string{annotationReplaces: old.Annotations[annotationVolume]}
	for _, key := range []string{annotationTier, annotationDomain} {
		if v := old.Annotations[key]; v != "" {
			claim.Annotations[key] = v
		}
	}
	claim.Spec.AccessModes, claim.Spec.VolumeMode = old.Spec.AccessModes, old.Spec.VolumeMode
	claim.Spec.StorageClassName, claim.Spec.Resources = old.Spec.StorageClassName, old.Spec.Resources
	switch err := r.Create(ctx, claim); {
	case err == nil:
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonRolling, "Replace", fmt.Sprintf("member %s of node %s gets an empty volume, %s; the former claim %s is kept", want.Member, n.Name, claim.Name, old.Name))
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	if old.Annotations[annotationEmpty] == replacedMark {
		return nil
	}
	patch := client.MergeFrom(old.DeepCopy())
	old.Annotations[annotationEmpty] = replacedMark
	return r.Patch(ctx, old, patch)
}

// noteMember records the id of a member's directory on its claim, as the node that has it mounted
// says.
func (r *Reconciler) noteMember(ctx context.Context, n *nodeView, claim *corev1.PersistentVolumeClaim, id string) error {
	if claim == nil || id == "" || claim.Annotations[annotationVolume] == id || n.pod == nil {
		return nil
	}
	if !slices.ContainsFunc(n.pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
	}) {
		return nil
	}
	patch := client.MergeFrom(claim.DeepCopy())
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[annotationVolume] = id
	return r.Patch(ctx, claim, patch)
}
