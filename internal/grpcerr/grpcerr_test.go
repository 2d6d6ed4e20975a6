package grpcerr

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestStatusCodeOfAnError(t *testing.T) {
	base := errors.New("base")
	table := []Code{{base, codes.NotFound}}
	for _, x := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK}, {base, codes.NotFound}, {fmt.Errorf("wrapped: %w", base), codes.NotFound},
		{errors.Join(base, context.Canceled), codes.NotFound}, // the table comes first
		{context.DeadlineExceeded, codes.DeadlineExceeded}, {context.Canceled, codes.Canceled},
		{errors.New("other"), codes.Internal}, {status.Error(codes.Aborted, "a status"), codes.Aborted},
	} {
		if got := status.Code(Status(x.err, table)); got != x.want {
			t.Errorf("%v: %v, want %v", x.err, got, x.want)
		}
	}
}
