package harness

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/gemel-storage/gemel/internal/exits"
)

// What runs a node's process, as a kubelet or systemd does: one that has ended without a stop is
// started again after a back-off, and for no other reason. A node that a test killed or stopped
// stays so.

// Bounds of the back-off: the kubelet's 10 s to 5 min, forgotten after 10 min, made short.
const (
	backOffMin = 200 * time.Millisecond
	backOffMax = 5 * time.Second
	backOffEnd = 30 * time.Second
)

// supervisor is that of one node. Pair.mu guards it.
type supervisor struct {
	started time.Time
	delay   time.Duration
	again   bool // the life before this one ended without a stop
	waits   bool // it will be started again
	codes   []int
	failed  error // it could not be started again
}

// supervise waits for the end of a process that was started.
func (p *Pair) supervise(i int, pr *proc) {
	select {
	case <-pr.done:
	case <-p.closed:
		return
	}
	p.mu.Lock()
	if p.procs[i] != pr {
		p.mu.Unlock()
		return // it was asked to
	}
	s := &p.super[i]
	code := exitCode(pr.err)
	s.codes = append(s.codes, code)
	if !s.restarts(code) {
		p.mu.Unlock()
		return // it is for Ended to say
	}
	if s.delay == 0 || time.Since(s.started) > backOffEnd {
		s.delay = backOffMin
	}
	delay := s.delay
	s.delay = min(2*delay, backOffMax)
	p.procs[i], s.waits = nil, true
	p.mu.Unlock()
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.closed:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.waits || p.last[i] != pr {
		return // a test has stopped it meanwhile, or started it
	}
	s.waits, s.again = false, true
	if err := p.start(i); err != nil {
		s.failed = err
	}
}

// restarts tells whether a process that has ended with a code is started again: one that has left,
// and then also one that could not start.
func (s *supervisor) restarts(code int) bool {
	return code == exits.Left || code == exits.Failed && s.again
}

// exitCode of a process; -1 when a signal ended it.
func exitCode(err error) int {
	var x *exec.ExitError
	switch {
	case err == nil:
		return exits.OK
	case errors.As(err, &x):
		return x.ExitCode()
	}
	return -1
}

// Exits are the codes with which a supervised node's processes ended without a stop.
func (p *Pair) Exits(i int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int{}, p.super[i].codes...)
}

// Waits reports that a node's process has ended without a stop and will be started again.
func (p *Pair) Waits(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.super[i].waits
}

// Ending reports that a node's process was told to end, and has not: it may wait for its disk.
func (p *Pair) Ending(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.last[i]
	if pr == nil || p.procs[i] == pr {
		return false
	}
	select {
	case <-pr.done:
		return false
	default:
		return true
	}
}

// hold keeps a node from being started again; the caller holds mu.
func (p *Pair) hold(i int) {
	s := &p.super[i]
	s.waits, s.again, s.delay = false, false, 0
}

// supervisedErr says what went wrong when a node was to be started again.
func (p *Pair) supervisedErr(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.super[i].failed; err != nil {
		return fmt.Errorf("harness: node %s could not be started again: %w", Names[i], err)
	}
	return nil
}
