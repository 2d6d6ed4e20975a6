package store

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// A disk that has stopped answers no probe, although nothing is dirty; one that fails makes the
// store untrusted.
func TestProbeAsksTheDisk(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	s := open(t, filepath.Join(d.Mount, "store"), Options{})
	for range 2 { // the first one makes the file
		if err := s.Default().Probe(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := d.Set(ctx, slowdisk.Knobs{Stuck: true}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Default().Probe() }()
	select {
	case err := <-done:
		t.Errorf("a disk that has stopped answers: %v", err)
	case <-time.After(300 * time.Millisecond): // it would have taken one or two
	}
	if err := d.Set(ctx, slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("no answer after the disk has come back")
	}
}

func TestProbeThatFails(t *testing.T) {
	fault := error(unix.ENOSPC)
	s, _ := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultProbe {
			return fault
		}
		return nil
	}})
	if err := s.Default().Probe(); err != nil || s.Failed() != nil {
		t.Errorf("a full volume: %v", err)
	}
	fault = unix.EIO
	if err := s.Default().Probe(); !errors.Is(err, ErrMedia) || s.Failed() == nil {
		t.Errorf("a disk that fails: %v", err)
	}
}
