package groupsnapshot

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// DataKept is the message of an object that is being deleted without spec.destroy.
const DataKept = "the snapshots are kept: to destroy them, set spec.destroy (CSI DeleteVolumeGroupSnapshot sets it); to delete only the object, remove the finalizer " + v1alpha1.Finalizer

// writeStatus writes the status and returns when to reconcile again.
func (p *pass) writeStatus(ctx context.Context, err error) (ctrl.Result, error) {
	f, ok := finding.Of(err)
	if err != nil && !ok { // an error of the API server, which no condition can show
		return object.RequeueIfThere(err)
	}
	next := p.o.DeepCopy()
	s := &next.Status
	if p.takenAt != nil {
		at := metav1.NewTime(p.takenAt.Truncate(time.Second)) // as the API server does
		s.TakenAt = &at
	}
	if p.held > 0 {
		s.Held = &metav1.Duration{Duration: p.held.Round(time.Microsecond)}
	}
	changed := p.condition(s, f)
	s.ObservedGeneration = p.o.Generation
	if !equality.Semantic.DeepEqual(p.o.Status, *s) {
		if err := p.Status().Update(ctx, next, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
			return object.RequeueIfThere(fmt.Errorf("status of LogicalUnitGroupSnapshot %s: %w", p.o.Name, err))
		}
		if changed {
			p.recordEvent(next, f)
		}
	}
	if f != nil && f.Retry {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: p.requeueAfter()}, nil
}

func (p *pass) condition(s *v1alpha1.LogicalUnitGroupSnapshotStatus, f *finding.Finding) bool {
	reason, message := v1alpha1.ReasonReady, fmt.Sprintf("the %d snapshots are of one instant", len(p.o.Spec.Members))
	if p.deleted() && !p.o.Spec.Destroy {
		reason, message = v1alpha1.ReasonDataKept, DataKept
		if f != nil {
			f = &finding.Finding{Reason: f.Reason, Message: f.Message + "; " + DataKept}
		}
	}
	return finding.Set(&s.Conditions, v1alpha1.ConditionReady, p.o.Generation, f, reason, message)
}

func (p *pass) recordEvent(o *v1alpha1.LogicalUnitGroupSnapshot, f *finding.Finding) {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if c.Reason == v1alpha1.ReasonProgressing {
		return
	}
	level := corev1.EventTypeNormal
	if c.Status != metav1.ConditionTrue || c.Reason == v1alpha1.ReasonDataKept {
		level = corev1.EventTypeWarning
	}
	if f != nil && !f.Retry && !p.made() {
		groups.WithLabelValues("failed").Inc()
	}
	p.Recorder.Eventf(o, nil, level, c.Reason, "Reconcile", "%s", c.Message)
}
