package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
)

// Tgt is Debian's tgtd, tuned as far as it goes: large bursts, unsolicited data.
type Tgt struct {
	Portal, IQN string
	Flags       string
	dir         string
	adm         func(ctx context.Context, args ...string) error
	proc        *process
	luns        int
}

// TgtAvailable says why tgtd cannot be run; nil if it can.
func TgtAvailable() error {
	_, err := find("tgtd", "tgt")
	if err == nil {
		_, err = find("tgtadm", "tgt")
	}
	return err
}

// started counts those of this process: each needs a control socket of its own, which is the
// machine's.
var started atomic.Int32

// StartTgt runs tgtd; its images lie in dir.
func StartTgt(ctx context.Context, dir string) (t *Tgt, err error) {
	tgtd, err := find("tgtd", "tgt")
	if err != nil {
		return nil, err
	}
	adm, err := find("tgtadm", "tgt")
	if err != nil {
		return nil, err
	}
	t = &Tgt{IQN: "iqn.2026-11.storage.gemel.bench:peer", dir: dir}
	if t.Portal, err = freeport.Addr("127.0.0.1"); err != nil {
		return nil, err
	}
	number := strconv.Itoa((os.Getpid()+int(started.Add(1)))&0x3fff + 1)
	t.adm = func(ctx context.Context, args ...string) error {
		out, err := exec.CommandContext(ctx, adm, append([]string{"-C", number, "--lld", "iscsi"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if t.proc, err = startProcess(tgtd, "-f", "-C", number, "--iscsi", "portal="+t.Portal); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if err := t.proc.await(ctx, "tgtd", func() error { return t.adm(ctx, "--op", "show", "--mode", "target") }); err != nil {
		return t, err
	}
	steps := [][]string{{"--op", "new", "--mode", "target", "--tid", "1", "-T", t.IQN}}
	for _, kv := range [][2]string{{"MaxRecvDataSegmentLength", "262144"}, {"FirstBurstLength", "262144"},
		{"MaxBurstLength", "1048576"}, {"InitialR2T", "No"}, {"ImmediateData", "Yes"}} {
		steps = append(steps, []string{"--op", "update", "--mode", "target", "--tid", "1", "-n", kv[0], "-v", kv[1]})
		t.Flags += " " + kv[0] + "=" + kv[1]
	}
	steps = append(steps, []string{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"})
	for _, a := range steps {
		if err := t.adm(ctx, a...); err != nil {
			return t, err
		}
	}
	version, _ := exec.CommandContext(ctx, tgtd, "--version").Output()
	t.Flags = "tgtd " + strings.TrimSpace(string(version)) + ": unmirrored, bstype=rdwr, write-back, 16 I/O threads (default)," + t.Flags
	return t, t.proc.await(ctx, "tgtd", listening(t.Portal))
}

// Serve makes a LUN of so many bytes and opens it.
func (t *Tgt) Serve(ctx context.Context, size int64) (*Served, error) {
	t.luns++
	n := strconv.Itoa(t.luns)
	image := filepath.Join(t.dir, "tgt-"+n+".img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, size); err != nil {
		return nil, err
	}
	if err := t.adm(ctx, "--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", n, "-b", image, "--bstype", "rdwr"); err != nil {
		return nil, err
	}
	d, err := initiator.Open(ctx, initiator.Config{InitiatorName: HostIQN + "tgt", Target: t.IQN, Portals: []string{t.Portal}, LUN: uint16(t.luns),
		Timers: initiator.Timers{Command: -1}})
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("iscsi://%s/%s/%s", t.Portal, t.IQN, n)
	return &Served{Device: d, Name: "tgt", Flags: t.Flags, Procs: []load.Process{{Name: "tgtd", PID: t.proc.pid()}},
		URL: func(context.Context, string) (string, error) { return url, nil }}, nil
}

// Close ends tgtd.
func (t *Tgt) Close() { t.proc.stop() }
