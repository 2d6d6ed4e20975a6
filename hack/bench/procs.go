package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/freeport"
	"github.com/gemel-storage/gemel/internal/procstat"
)

const hostIQN = "iqn.2026-01.io.gemel:bench-host"

// served is a running target with one LUN and a device on it.
type served struct {
	name   string
	portal string
	iqn    string
	lun    uint16
	pids   []int
	flags  string // what it was started with
	dev    *initiator.Device
	stop   func()
}

func (s *served) open(ctx context.Context) error {
	d, err := initiator.Open(ctx, initiator.Config{InitiatorName: hostIQN, Target: s.iqn, Portals: []string{s.portal}, LUN: s.lun})
	s.dev = d
	return err
}

func (s *served) close() {
	if s == nil {
		return
	}
	if s.dev != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = s.dev.Close(ctx)
		cancel()
	}
	s.stop()
}

// process is a child with its output kept for the error message.
type process struct {
	cmd  *exec.Cmd
	log  bytes.Buffer
	done chan struct{}
}

func startProcess(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // nothing is left behind
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// stop ends the process, politely first.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// await polls a condition while the process lives.
func (p *process) await(ctx context.Context, what string, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), p.log.String())
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func listening(addr string) func() error {
	return func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}
}

func find(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, name); exec.Command(p, "--version").Run() == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s not found", name)
}

// startTgt runs Debian's tgtd with a file of the given size, tuned as far as it goes: large bursts, unsolicited data.
func startTgt(ctx context.Context, dir string, size int64) (*served, error) {
	tgtd, err := find("tgtd")
	if err != nil {
		return nil, err
	}
	adm, err := find("tgtadm")
	if err != nil {
		return nil, err
	}
	portal, err := freeport.Addr("127.0.0.1")
	if err != nil {
		return nil, err
	}
	image := filepath.Join(dir, "tgt.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, size); err != nil {
		return nil, err
	}
	control := strconv.Itoa(os.Getpid()&0x3fff + 1)
	p, err := startProcess(tgtd, "-f", "-C", control, "--iscsi", "portal="+portal)
	if err != nil {
		return nil, err
	}
	s := &served{name: "tgt", portal: portal, iqn: "iqn.2026-01.io.gemel:peer", lun: 1, pids: []int{p.cmd.Process.Pid}, stop: p.stop}
	run := func(args ...string) error {
		out, err := exec.CommandContext(ctx, adm, append([]string{"-C", control, "--lld", "iscsi"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	err = p.await(ctx, "tgtd", func() error { return run("--op", "show", "--mode", "target") })
	steps := [][]string{
		{"--op", "new", "--mode", "target", "--tid", "1", "-T", s.iqn},
		{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", image, "--bstype", "rdwr"},
	}
	for _, kv := range [][2]string{{"MaxRecvDataSegmentLength", "262144"}, {"FirstBurstLength", "262144"},
		{"MaxBurstLength", "1048576"}, {"InitialR2T", "No"}, {"ImmediateData", "Yes"}} {
		steps = append(steps, []string{"--op", "update", "--mode", "target", "--tid", "1", "-n", kv[0], "-v", kv[1]})
		s.flags += " " + kv[0] + "=" + kv[1]
	}
	steps = append(steps, []string{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"})
	for _, a := range steps {
		if err == nil {
			err = run(a...)
		}
	}
	if err == nil {
		err = p.await(ctx, "tgtd", listening(portal))
	}
	if err == nil {
		err = s.open(ctx)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	version, _ := exec.CommandContext(ctx, tgtd, "--version").Output()
	s.flags = "tgtd " + strings.TrimSpace(string(version)) + ": bstype=rdwr, write-back, 16 I/O threads (default)," + s.flags
	return s, nil
}

// cpuTime is user plus system time of processes, threads included.
func cpuTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		stat, err := procstat.Read(pid)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(stat.User+stat.System) * procstat.Tick
	}
	return sum, nil
}
