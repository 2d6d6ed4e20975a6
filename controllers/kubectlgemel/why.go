package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// ErrBroken: the diagnosis found a problem; the output says which and what to do.
var ErrBroken = errors.New("the claim has a problem: see above")

// chain prints links up to the first broken one.
type chain struct {
	w      io.Writer
	broken bool
}

func (c *chain) link(ok bool, what, text, remedy string) bool {
	mark := "ok    "
	if !ok {
		mark, c.broken = "BROKEN", true
	}
	fmt.Fprintf(c.w, "%s  %-24s %s\n", mark, what, text)
	if !ok && remedy != "" {
		fmt.Fprintf(c.w, "        remedy: %s\n", remedy)
	}
	return ok
}

// Why checks the objects of a claim: PVC, volume, LUN, pair, both nodes, attachment, worker. It
// stops at the first problem.
func Why(ctx context.Context, c client.Client, namespace, name string, w io.Writer) error {
	ch := &chain{w: w}
	if err := walk(ctx, c, ch, namespace, name); err != nil {
		return err
	}
	if ch.broken {
		return ErrBroken
	}
	fmt.Fprintln(w, "no problem found")
	return nil
}

func walk(ctx context.Context, c client.Client, ch *chain, namespace, name string) error {
	pvc := &corev1.PersistentVolumeClaim{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		if apierrors.IsNotFound(err) {
			ch.link(false, "claim "+name, "the claim does not exist in namespace "+namespace, "check the name, or set the namespace with -n")
			return nil
		}
		return err
	}
	if !ch.link(pvc.Status.Phase == corev1.ClaimBound, "claim "+name, string(pvc.Status.Phase), "see the events of the claim; the last one: "+lastEvent(ctx, c, pvc)) {
		waiting(ctx, c, ch, pvc)
		return nil
	}
	pv := &corev1.PersistentVolume{}
	if err := c.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		ch.link(false, "volume "+pv.Name, "the volume is not of Gemel", "")
		return nil
	}
	ch.link(true, "volume "+pv.Name, "handle "+pv.Spec.CSI.VolumeHandle, "")
	lu := &v1alpha1.LogicalUnit{}
	if err := c.Get(ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, lu); err != nil {
		if apierrors.IsNotFound(err) {
			ch.link(false, "LogicalUnit", "the LogicalUnit does not exist", "the object was deleted by force, and its LUN is in status.orphans of the TargetPair: recreate it with kubectl gemel import --apply")
			return nil
		}
		return err
	}
	if !condition(ch, "LUN "+short(lu.Name), lu.Status.Conditions, v1alpha1.ConditionReady) {
		return nil
	}
	restricted(ch, lu)
	placed(ch, lu)
	if err := grouped(ctx, c, ch, pvc); err != nil {
		return err
	}
	luns, err := parts(ctx, c, ch, lu)
	if err != nil || ch.broken {
		return err
	}
	for _, name := range lu.Spec.Placement.Pairs() {
		if err := pairOf(ctx, c, ch, name, lu, luns); err != nil || ch.broken {
			return err
		}
	}
	if held := heldText(lu); held != "" {
		ch.link(true, "owner", "node "+lu.Status.Owner+", "+held, "")
	}
	for _, m := range lu.Status.Moves {
		ch.link(true, "moved", moveText(m), "")
	}
	if !condition(ch, "hosts", lu.Status.Conditions, v1alpha1.ConditionPublished) {
		return nil
	}
	return attachments(ctx, c, ch, pv.Name, lu)
}

// pairOf checks a pair of a volume; luns are those of a striped one.
func pairOf(ctx context.Context, c client.Client, ch *chain, name string, lu *v1alpha1.LogicalUnit, luns []v1alpha1.LogicalUnit) error {
	p := &v1alpha1.TargetPair{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, p); err != nil {
		return err
	}
	if !condition(ch, "pair "+p.Name, p.Status.Conditions, v1alpha1.ConditionReady) {
		return nil
	}
	of := ""
	if len(lu.Spec.Placement.LegPairs) > 0 {
		of = " of " + p.Name
	}
	for _, n := range p.Status.Nodes {
		role := "partner"
		if n.Name == lu.Status.Owner {
			role = "owner"
		} else if lu.Spec.Striped != nil {
			owns, all := owned(lu, luns, p.Name, n.Name)
			role = fmt.Sprintf("owner of %d of the %d LUNs", owns, all)
		}
		// One missing node is no problem of the claim: the other one serves the data.
		text := fmt.Sprintf("%s, %s", role, n.Phase)
		if n.Reason != "" {
			text += ": " + n.Reason
		}
		ch.link(true, "node "+n.Name+of, text, "")
	}
	// It is no problem of the claim: one node serves the data.
	if x := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync); x != nil && x.Status != metav1.ConditionTrue {
		ch.link(true, "redundancy"+of, "one node only: "+x.Message, "")
	}
	return nil
}

// placed says what was preferred for a LUN and what has decided. LUNs of earlier releases, and
// those whose objects were lost, do not know it.
func placed(ch *chain, lu *v1alpha1.LogicalUnit) {
	reason := lu.Annotations[v1alpha1.AnnotationPlaced]
	if reason == "" {
		return
	}
	preferred := "nothing was preferred, because no worker was known"
	if len(lu.Spec.AccessibleFrom) > 0 {
		preferred = "near all workers that may use it, because no worker was known"
	}
	if x := lu.Spec.Consumer; x != nil {
		preferred = "near worker " + x.Worker
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(x.Topology)) {
			labels = append(labels, k+"="+string(x.Topology[k]))
		}
		if len(labels) > 0 {
			preferred += " (" + strings.Join(labels, ", ") + ")"
		}
	}
	ch.link(true, "preferred", preferred, "")
	ch.link(true, "placed", reason, "")
	if home := lu.Status.PreferredNode; home != "" {
		ch.link(true, "home", "node "+home, "")
	}
}

// attachments checks the VolumeAttachments of a volume and their workers.
func attachments(ctx context.Context, c client.Client, ch *chain, volume string, lu *v1alpha1.LogicalUnit) error {
	list := &storagev1.VolumeAttachmentList{}
	if err := c.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		a := &list.Items[i]
		if a.Spec.Source.PersistentVolumeName == nil || *a.Spec.Source.PersistentVolumeName != volume {
			continue
		}
		text := "attached"
		if e := a.Status.AttachError; e != nil {
			text = e.Message
		} else if !a.Status.Attached {
			text = "not attached yet"
		}
		if !ch.link(a.Status.Attached, "worker "+a.Spec.NodeName, text, "Kubernetes retries automatically; see the log of the CSI controller for the reason") {
			return nil
		}
		h := &v1alpha1.Host{}
		if err := c.Get(ctx, client.ObjectKey{Name: a.Spec.NodeName}, h); err != nil {
			if !apierrors.IsNotFound(err) {
				return err
			}
			ch.link(false, "host "+a.Spec.NodeName, "no node plugin has registered this worker", "check the pod of the DaemonSet gemel-csi-node on this worker")
			return nil
		}
		if !condition(ch, "host "+h.Name, h.Status.Conditions, v1alpha1.ConditionReady) {
			return nil
		}
		// A missing path is no problem of the claim: I/O uses the other one.
		if x := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionPathsComplete); x != nil {
			ch.link(true, "paths of "+h.Name, strings.TrimSpace(x.Reason+" "+x.Message), "")
		}
		for _, t := range h.Status.Targets {
			for _, n := range t.Nodes {
				if lu.Spec.Placement.On(t.Pair) {
					what := "sessions of " + h.Name
					if len(lu.Spec.Placement.LegPairs) > 0 {
						what += " to " + t.Pair
					}
					ch.link(true, what, sessionText(n), "")
				}
			}
		}
	}
	return nil
}

// condition is a link that is ok if a condition is True.
func condition(ch *chain, what string, conditions []metav1.Condition, kind string) bool {
	x := meta.FindStatusCondition(conditions, kind)
	if x == nil {
		return ch.link(false, what, "there is no condition "+kind+" yet", "check that the operator runs: kubectl get pods -A -l app.kubernetes.io/component=operator")
	}
	return ch.link(x.Status == metav1.ConditionTrue, what, strings.TrimSpace(x.Reason+" "+x.Message), "see the message")
}

func lastEvent(ctx context.Context, c client.Client, pvc *corev1.PersistentVolumeClaim) string {
	l := &corev1.EventList{}
	if c.List(ctx, l, client.InNamespace(pvc.Namespace)) != nil {
		return "(not readable)"
	}
	var last *corev1.Event
	for i := range l.Items {
		e := &l.Items[i]
		if e.InvolvedObject.UID == pvc.UID && (last == nil || e.LastTimestamp.After(last.LastTimestamp.Time)) {
			last = e
		}
	}
	if last == nil {
		return "(none)"
	}
	return last.Message
}

// short abbreviates the hash in a name.
func short(name string) string { return name[:min(len(name), 16)] }
