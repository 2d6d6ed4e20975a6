package snapshot

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// DataKept is the message of an object that is being deleted without spec.destroy.
const DataKept = "the snapshot is kept: to destroy the snapshot, set spec.destroy (CSI DeleteSnapshot sets it); to delete only the object, remove the finalizer " + v1alpha1.Finalizer

// writeStatus writes the status and returns when to reconcile again.
func (p *pass) writeStatus(ctx context.Context, err error) (ctrl.Result, error) {
	f, ok := finding.Of(err)
	if err != nil && !ok { // an error of the API server, which no condition can show
		return object.RequeueIfThere(err)
	}
	next := p.o.DeepCopy()
	s := &next.Status
	if p.snap != nil {
		taken := metav1.NewTime(p.snap.Created.AsTime())
		s.Size, s.TakenAt = resource.NewQuantity(int64(p.snap.SizeBytes), resource.BinarySI), &taken
	}
	p.setStripedStatus(s)
	changed := p.condition(s, f)
	s.ObservedGeneration = p.o.Generation
	if !equality.Semantic.DeepEqual(truncated(p.o.Status), truncated(*s)) {
		if err := p.Status().Update(ctx, next, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
			return object.RequeueIfThere(fmt.Errorf("status of LogicalUnitSnapshot %s: %w", p.o.Name, err))
		}
		if changed {
			p.recordEvent(next)
		}
	}
	if f != nil && f.Retry {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: p.requeueAfter()}, nil
}

// truncated truncates the time to whole seconds, as the API server does, for comparisons.
func truncated(s v1alpha1.LogicalUnitSnapshotStatus) v1alpha1.LogicalUnitSnapshotStatus {
	if s.TakenAt != nil {
		t := metav1.NewTime(s.TakenAt.Truncate(time.Second))
		s.TakenAt = &t
	}
	return s
}

func (p *pass) condition(s *v1alpha1.LogicalUnitSnapshotStatus, f *finding.Finding) bool {
	reason, message := v1alpha1.ReasonReady, "the snapshot exists"
	if p.deleted() {
		reason, message = v1alpha1.ReasonDataKept, DataKept
		if f != nil {
			f = &finding.Finding{Reason: f.Reason, Message: f.Message + "; " + DataKept}
		}
	}
	return finding.Set(&s.Conditions, v1alpha1.ConditionReady, p.o.Generation, f, reason, message)
}

func (p *pass) recordEvent(o *v1alpha1.LogicalUnitSnapshot) {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	level := corev1.EventTypeNormal
	if c.Status != "True" || c.Reason == v1alpha1.ReasonDataKept {
		level = corev1.EventTypeWarning
	}
	if c.Reason != v1alpha1.ReasonProgressing {
		p.Recorder.Eventf(o, nil, level, c.Reason, "Reconcile", "%s", c.Message)
	}
}
