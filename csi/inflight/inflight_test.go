package inflight

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestSecondOperationIsAborted(t *testing.T) {
	var s Set
	done, err := s.Start("v")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start("v"); status.Code(err) != codes.Aborted {
		t.Fatalf("got %v", err)
	}
	other, err := s.Start("w")
	if err != nil {
		t.Fatal(err)
	}
	other()
	done()
	if done, err = s.Start("v"); err != nil {
		t.Fatal(err)
	}
	done()
}
