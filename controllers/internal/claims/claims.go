// Package claims records events on the PersistentVolumeClaims of LUNs.
package claims

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Limit is how many claims get an event of one change. A pair has thousands of LUNs, and an event
// of each would displace all others; the object that changed says how many claims it concerns.
const Limit = 20

// maxNote limits the text of an event in bytes: the API server refuses more than 1 KiB.
const maxNote = 1000

// Note truncates the text of an event, and keeps it valid UTF-8.
func Note(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxNote)], "") }

// Event is what the claims are told.
type Event struct {
	Type, Reason, Action, Note string
	// Related is the object that has changed. The events of one claim about two such objects are
	// different events.
	Related runtime.Object
}

// InUse returns the LUNs that are mapped to a host.
func InUse(luns []*v1alpha1.LogicalUnit) []*v1alpha1.LogicalUnit {
	return slices.DeleteFunc(slices.Clone(luns), func(lu *v1alpha1.LogicalUnit) bool { return len(lu.Status.Hosts) == 0 })
}

// Record records an event on the claims of at most Limit LUNs, and returns how many claims have it.
// Every namespace has its turn before one has a second: each team that is concerned is told.
//
// The claim is that of the PersistentVolume, which has its UID: claims themselves need not be read.
// A volume that cannot be read, or is not bound, is left out.
func Record(ctx context.Context, c client.Reader, rec events.EventRecorder, luns []*v1alpha1.LogicalUnit, e Event) (told int) {
	for _, lu := range choose(luns) {
		claim := claimOf(ctx, c, lu)
		if claim == nil {
			continue
		}
		rec.Eventf(claim, e.Related, e.Type, e.Reason, e.Action, "%s", Note(e.Note))
		told++
	}
	return told
}

// handleOf is the handle of a LUN's volume: of a leg, that of the striped volume.
func handleOf(lu *v1alpha1.LogicalUnit) string {
	if lu.Spec.Leg != nil {
		return lu.Spec.Leg.Of
	}
	return lu.Name
}

// choose returns at most Limit LUNs, of as many volumes, in an order that does not change: those
// that are told of a loss are told of its end, as long as the same LUNs are in use.
func choose(luns []*v1alpha1.LogicalUnit) []*v1alpha1.LogicalUnit {
	list := slices.DeleteFunc(slices.Clone(luns), func(lu *v1alpha1.LogicalUnit) bool { return lu.Spec.Volume == nil || lu.Spec.Volume.Name == "" })
	slices.SortFunc(list, func(a, b *v1alpha1.LogicalUnit) int {
		return cmp.Or(cmp.Compare(handleOf(a), handleOf(b)), cmp.Compare(a.Name, b.Name))
	})
	list = slices.CompactFunc(list, func(a, b *v1alpha1.LogicalUnit) bool { return handleOf(a) == handleOf(b) })
	turn, turns := map[string]int{}, map[string]int{} // by LogicalUnit, by namespace
	for _, lu := range list {
		ns := lu.Spec.Volume.Namespace
		turn[lu.Name] = turns[ns]
		turns[ns]++
	}
	slices.SortStableFunc(list, func(a, b *v1alpha1.LogicalUnit) int { return cmp.Compare(turn[a.Name], turn[b.Name]) })
	return list[:min(len(list), Limit)]
}

// claimOf is the bound claim of a LUN; nil if there is none.
func claimOf(ctx context.Context, c client.Reader, lu *v1alpha1.LogicalUnit) *corev1.ObjectReference {
	pv := &corev1.PersistentVolume{}
	if c.Get(ctx, client.ObjectKey{Name: lu.Spec.Volume.Name}, pv) != nil {
		return nil
	}
	ref, src := pv.Spec.ClaimRef, pv.Spec.CSI
	if src == nil || src.Driver != v1alpha1.DriverName || src.VolumeHandle != handleOf(lu) || ref == nil || pv.Status.Phase != corev1.VolumeBound {
		return nil
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}
