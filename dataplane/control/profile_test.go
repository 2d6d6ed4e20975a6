package control

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// profile takes one and returns it unpacked.
func profile(t *testing.T, c targetv1.TargetServiceClient, req *targetv1.ProfileRequest) (string, error) {
	t.Helper()
	s, err := c.Profile(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for {
		part, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		all.Write(part.Data)
	}
	z, err := gzip.NewReader(&all)
	if err != nil {
		t.Fatalf("a profile of kind %s is not one: %v", req.Kind, err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), nil
}

func TestProfiles(t *testing.T) {
	c := newFake(t).client()
	for kind, want := range map[string]string{"heap": "inuse_space", "allocs": "alloc_space", "goroutine": "goroutine", "cpu": "cpu", "mutex": "contentions", "block": "contentions"} {
		req := &targetv1.ProfileRequest{Kind: kind}
		if timed[kind] != nil {
			req.Seconds = 1
		}
		if raw, err := profile(t, c, req); err != nil || !strings.Contains(raw, want) {
			t.Errorf("%s: %v, %d bytes", kind, err, len(raw))
		}
	}
	if r := runtime.SetMutexProfileFraction(-1); r != 0 {
		t.Errorf("waits for locks are still collected afterwards: %d", r)
	}
}

func TestProfilesThatAreRefused(t *testing.T) {
	f := newFake(t)
	c := f.client()
	for want, req := range map[string]*targetv1.ProfileRequest{
		`kind "": use one of cpu`: {}, `kind "all"`: {Kind: "all"}, "seconds 61: at most 60": {Kind: "cpu", Seconds: 61}, "leave seconds out": {Kind: "heap", Seconds: 1},
	} {
		if _, err := profile(t, c, req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", req, err, want)
		}
	}
	// One at a time; the one that is under way ends when the node stops.
	first := make(chan error, 1)
	go func() {
		_, err := profile(t, c, &targetv1.ProfileRequest{Kind: "cpu", Seconds: 60})
		first <- err
	}()
	deadline := time.Now().Add(20 * time.Second)
	for {
		if !profiling.TryLock() {
			break
		}
		profiling.Unlock()
		if time.Now().After(deadline) {
			t.Fatal("no profile is begun")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := profile(t, c, &targetv1.ProfileRequest{Kind: "mutex", Seconds: 1}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second profile beside the first one: %v", err)
	}
	close(f.done)
	select {
	case err := <-first:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a profile outlives the node")
	}
}
