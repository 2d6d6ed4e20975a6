package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// Names of the systems. A system's row of results has its name, a ratio two of them.
const (
	lioName        = "lio"
	lioAgainName   = "lio_again" // the control
	lioDRBDName    = "lio_on_drbd"
	unmirroredName = "gemel_unmirrored"
	plainName      = "gemel_plain_link"
	mtlsName       = "gemel_mtls"
)

// size of what is used of every LUN, in bytes: small enough for the guests' memory to hold all of
// them. What is measured is the way, not the disk.
const size = 64 << 20

const hostIQN = "iqn.2026-11.storage.gemel:bench-kernel"

// system is what is measured: one LUN, over this project's initiator.
type system struct {
	name, what string
	dev        *initiator.Device
}

func (s *system) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.dev.Close(ctx) // the guests are about to go
}

// open connects to a LUN.
func open(ctx context.Context, name, what string, cfg initiator.Config) (*system, error) {
	return openAs(ctx, hostIQN, name, what, cfg)
}

// openAs is open for another host.
func openAs(ctx context.Context, host, name, what string, cfg initiator.Config) (*system, error) {
	cfg.InitiatorName = host
	d, err := initiator.Open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if d.Size() < size {
		err = fmt.Errorf("%s: the LUN has %d bytes, less than %d", name, d.Size(), size)
	}
	return &system{name: name, what: what, dev: d}, err
}

// fill writes every block once, so that no row measures the first allocation of one.
func (s *system) fill(ctx context.Context) error {
	b := make([]byte, 1<<20)
	if _, err := rand.Read(b); err != nil {
		return err
	}
	for off := int64(0); off < size; off += int64(len(b)) {
		if _, err := s.dev.WriteAt(ctx, b, off); err != nil {
			return fmt.Errorf("%s: fill: %w", s.name, err)
		}
	}
	return s.dev.Flush(ctx)
}

// skip is a system that this machine cannot have, and why.
type skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// systems are brought up one after the other. The kernel's may be missing, which is said; Gemel's
// may not.
func (l *lab) systems(ctx context.Context, log *slog.Logger) (out []*system, skipped []skip, err error) {
	for _, x := range []struct {
		names []string
		up    func(context.Context, *slog.Logger) ([]*system, error)
		may   bool // be missing
	}{
		{[]string{lioName, lioAgainName}, l.lio, true},
		{[]string{lioDRBDName}, l.drbd, true},
		{[]string{plainName, unmirroredName}, l.gemelPlain, false},
		{[]string{mtlsName}, l.gemelMTLS, false},
	} {
		c, cancel := context.WithTimeout(ctx, 2*time.Minute)
		list, err := x.up(c, log)
		cancel()
		switch {
		case err == nil:
			out = append(out, list...)
		case x.may && ctx.Err() == nil:
			for _, s := range list {
				s.close()
			}
			for _, n := range x.names {
				fmt.Printf("skipped %s: %v\n", n, err)
				skipped = append(skipped, skip{n, err.Error()})
			}
		default:
			out = append(out, list...) // for the caller to close
			return out, skipped, fmt.Errorf("%v: %w", x.names, err)
		}
	}
	return out, skipped, nil
}
