// Package finding turns what goes wrong with an object into what its conditions and events say.
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
	Again   bool   // it may be gone when tried again soon; otherwise something has to change first
	Err     error  // may be nil
}

// Error implements error.
func (f *Finding) Error() string { return f.Reason + ": " + f.Message }

// Unwrap implements errors.Unwrap.
func (f *Finding) Unwrap() error { return f.Err }

// New is a finding that trying again soon does not fix.
func New(reason, format string, args ...any) *Finding {
	return &Finding{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Wait is a finding of something that is under way.
func Wait(reason, format string, args ...any) *Finding {
	f := New(reason, format, args...)
	f.Again = true
	return f
}

// RPC is the finding of a call to a pair, nil without an error.
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
	case codes.Unavailable:
		f.Reason, f.Again = v1alpha1.ReasonPairDown, true
	default:
		f.Reason, f.Again = v1alpha1.ReasonNotConfirmed, true
	}
	return f
}

// Client is the finding of a pair that cannot even be asked. Errors of the API server stay what they are.
func Client(pair string, err error) error {
	if errors.Is(err, pairconn.ErrUnknown) {
		return &Finding{Reason: v1alpha1.ReasonPairDown, Message: err.Error(), Again: true, Err: err}
	}
	return err
}

// Of finds the finding in an error. Other errors are the API server's: no condition shows them, since it could not be written.
func Of(err error) (*Finding, bool) {
	var f *Finding
	ok := errors.As(err, &f)
	return f, ok
}

// Code of the call that failed, OK when none did.
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

// Set writes a condition: True with the good reason and message, or what was found. It returns whether status or reason have
// changed, which is worth an event.
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
