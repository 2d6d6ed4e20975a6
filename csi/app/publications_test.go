package app

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/enroll"
)

type operator struct {
	requested enroll.ReachRequest
	answer    enroll.Reach
	err       error
}

func (o *operator) Reach(_ context.Context, q enroll.ReachRequest) (enroll.Reach, error) {
	o.requested = q
	return o.answer, o.err
}

// The operator's answer is an attachment of the same volume and host; a transient error is retried,
// a refusal is not.
func TestReachByOperatorRetriesTransientErrors(t *testing.T) {
	o := &operator{answer: enroll.Reach{TargetIQN: "t", Portals: []string{"x:1"}, LUN: 3, WWID: "6", Generation: 9, ReadOnly: true, Pair: "p", CHAP: true}}
	chap := &attach.CHAP{User: "u", Secret: "s"}
	was := attach.Attachment{VolumeID: "v", HostIQN: "h", Generation: 8, Replay: true, Auth: chap}
	got, err := byOperator{o}.Reach(t.Context(), was, 8)
	want := attach.Attachment{VolumeID: "v", HostIQN: "h", TargetIQN: "t", Portals: []string{"x:1"}, LUN: 3, WWID: "6", Generation: 9, ReadOnly: true, Pair: "p", Enroll: true, Auth: chap}
	if err != nil || !reflect.DeepEqual(got, want) || o.requested != (enroll.ReachRequest{Volume: "v", Replayed: 8}) {
		t.Fatalf("%+v, %v; requested %+v", got, err, o.requested)
	}
	o.answer.ReadOnly = false
	if got, err := (byOperator{o}).Reach(t.Context(), was, 0); err != nil || !got.Replay || got.ReadOnly {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, x := range []struct {
		err   error
		again bool
	}{{fmt.Errorf("%w: x", enroll.ErrReach), true}, {fmt.Errorf("%w: x", enroll.ErrNotReached), false}} {
		o.err = x.err
		if _, err := (byOperator{o}).Reach(t.Context(), was, 8); !errors.Is(err, x.err) || errors.Is(err, attach.ErrFailed) != x.again {
			t.Errorf("%v became %v", x.err, err)
		}
	}
}

// The flags decide who is called.
func TestPublicationsFollowTheFlags(t *testing.T) {
	for name, x := range map[string]struct {
		c    config
		some bool
	}{
		"a pair":      {config{PairEndpoints: []string{"127.0.0.1:1"}}, true},
		"an operator": {config{EnrollEndpoint: "x:1"}, true},
		"neither":     {config{}, false},
	} {
		p, stop, err := x.c.publications()
		if err != nil || (p != nil) != x.some {
			t.Errorf("%s: %v, %v", name, p, err)
			continue
		}
		stop()
	}
}
