package kubectlgemel

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
)

// grouped names the ConsistencyGroups that select a claim, with their condition, their balance, and
// why the LUN has its home. A group that is not ready stops no I/O, so it is no broken link.
func grouped(ctx context.Context, c client.Client, ch *chain, claim *corev1.PersistentVolumeClaim) error {
	all, err := (&groups.Finder{Objects: c}).InNamespace(ctx, claim.Namespace)
	if err != nil {
		return err
	}
	for _, g := range all.Matching(claim.Labels) {
		text := "the operator has not looked at it yet"
		if x := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady); x != nil {
			text = x.Reason + ": " + x.Message
		}
		if g.Status.Balance != "" {
			text += "; homes: " + g.Status.Balance
		}
		if i := slices.IndexFunc(g.Status.Members, func(m v1alpha1.GroupMember) bool { return m.Claim == claim.Name }); i >= 0 {
			text += "; this LUN: " + g.Status.Members[i].Reason
		}
		ch.link(true, "group "+g.Name, text, "")
	}
	return nil
}
