package finding

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

func TestRPCReasonsOfCodes(t *testing.T) {
	for code, want := range map[codes.Code]struct {
		reason string
		again  bool
	}{
		codes.NotFound:           {v1alpha1.ReasonMissing, false},
		codes.AlreadyExists:      {v1alpha1.ReasonInvalid, false},
		codes.InvalidArgument:    {v1alpha1.ReasonInvalid, false},
		codes.FailedPrecondition: {v1alpha1.ReasonInUse, false},
		codes.ResourceExhausted:  {v1alpha1.ReasonNoRoom, false},
		codes.Aborted:            {v1alpha1.ReasonProgressing, true},
		codes.Unavailable:        {v1alpha1.ReasonPairDown, true},
		codes.DeadlineExceeded:   {v1alpha1.ReasonNotConfirmed, true},
		codes.Internal:           {v1alpha1.ReasonNotConfirmed, true},
	} {
		err := RPC("p0", "grow the LUN", fmt.Errorf("wrapped: %w", status.Error(code, "why")))
		f, ok := Of(fmt.Errorf("and again: %w", err))
		if !ok || f.Reason != want.reason || f.Retry != want.again || Code(err) != code {
			t.Errorf("%v: %+v", code, f)
		}
		for _, s := range []string{"p0", "grow the LUN", "why"} {
			if !strings.Contains(f.Message, s) {
				t.Errorf("%q does not say %q", f.Message, s)
			}
		}
	}
	if RPC("p", "x", nil) != nil || Code(nil) != codes.OK || Code(New("r", "m")) != codes.OK || Code(context.DeadlineExceeded) != codes.DeadlineExceeded {
		t.Error("no error, and yet one")
	}
}

func TestClientErrorsOfTheAPIServerStay(t *testing.T) {
	if f, ok := Of(Client("p", fmt.Errorf("%w: no addresses", pairconn.ErrUnknown))); !ok || f.Reason != v1alpha1.ReasonPairDown || !f.Retry {
		t.Errorf("%+v", f)
	}
	if _, ok := Of(Client("p", errors.New("the API server is down"))); ok {
		t.Error("an error of the API server became a finding")
	}
}

func TestSetReportsChanges(t *testing.T) {
	var list []metav1.Condition
	set := func(f *Finding) bool { return Set(&list, "Ready", 3, f, "Ready", "it is there") }
	if !set(nil) || set(nil) || list[0].Status != "True" || list[0].ObservedGeneration != 3 {
		t.Errorf("%+v", list)
	}
	if !set(New("NoRoom", "%d bytes", 5)) || set(New("NoRoom", "6 bytes")) || list[0].Status != "False" || list[0].Message != "6 bytes" {
		t.Errorf("%+v", list)
	}
	if !set(Wait("PairDown", "x")) || !set(nil) || len(list) != 1 {
		t.Errorf("%+v", list)
	}
}
