// Package finding turns errors of an object into conditions and events.
package finding

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Finding is an error that a condition shows.
type Finding struct {
	Reason  string // one of v1alpha1's
	Message string // what is wrong and what to do
	Retry   bool   // a retry may succeed; otherwise something has to change first
	Err     error  // may be nil
}

// Error implements error.
func (f *Finding) Error() string { return f.Reason + ": " + f.Message }

// Unwrap implements errors.Unwrap.
func (f *Finding) Unwrap() error { return f.Err }

// New is a finding that a retry does not fix.
func New(reason, format string, args ...any) *Finding {
	return &Finding{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Wait is a finding that a retry may fix.
func Wait(reason, format string, args ...any) *Finding {
	f := New(reason, format, args...)
	f.Retry = true
	return f
}

// RPC is the finding of a failed call to a pair, nil without an error.
func RPC(pair, what string, err error) error {
	if err == nil {
		return nil
	}
	f := &Finding{Err: err, Message: fmt.Sprintf("pair %s: %s: %s", pair, what, status.Convert(err).Message())}
	switch status.Code(err) {
	case codes.NotFound:
		f.Reason = v1alpha1.ReasonMissing
	case codes.AlreadyExists, codes.InvalidArgument, codes.OutOfRange:
		f.Reason = v1alpha1.ReasonInvalid
	case codes.FailedPrecondition:
		f.Reason = v1alpha1.ReasonInUse
	case codes.ResourceExhausted:
		f.Reason = v1alpha1.ReasonNoRoom
	case codes.Aborted: // a copy is not complete yet
		f.Reason, f.Retry = v1alpha1.ReasonProgressing, true
	case codes.Unavailable:
		f.Reason, f.Retry = v1alpha1.ReasonPairDown, true
	default:
		f.Reason, f.Retry = v1alpha1.ReasonNotConfirmed, true
	}
	return f
}

// Client is the finding of a pair that cannot be connected. Errors of the API server are returned
// unchanged.
func Client(pair string, err error) error {
	if errors.Is(err, pairconn.ErrUnknown) {
		return &Finding{Reason: v1alpha1.ReasonPairDown, Message: err.Error(), Retry: true, Err: err}
	}
	return err
}

// Of returns the finding in an error. Other errors are of the API server: no condition can show
// them, because it could not be written.
func Of(err error) (*Finding, bool) {
	var f *Finding
	ok := errors.As(err, &f)
	return f, ok
}

// Code of the failed call, OK if none failed.
func Code(err error) codes.Code {
	if f, ok := Of(err); ok {
		if f.Err == nil {
			return codes.OK
		}
		err = f.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	return status.Code(err)
}

// Set sets a condition: True with reason and message, or False with those of the finding. It
// reports whether status or reason have changed, which is worth an event.
func Set(list *[]metav1.Condition, kind string, generation int64, f *Finding, reason, message string) bool {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation}
	if f != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, f.Reason, f.Message
	}
	old := meta.FindStatusCondition(*list, kind)
	changed := old == nil || old.Status != c.Status || old.Reason != c.Reason
	meta.SetStatusCondition(list, c)
	return changed
}
