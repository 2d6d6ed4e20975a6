package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// change is what events of the kernel reported.
type change struct {
	all   bool   // events were lost, or there was no subscription
	sized []hctl // SCSI devices whose target says that their size or identity is another
}

// maxSized bounds what is remembered of single devices.
const maxSized = 1024

// of tells whether a device of an attachment is to be read again.
func (c change) of(g goal, o *observed) bool {
	return c.all || slices.ContainsFunc(g.sessions(o), func(s session) bool {
		return slices.ContainsFunc(g.each(), func(l goal) bool { return slices.Contains(c.sized, l.address(s)) })
	})
}

// attentions are unit attentions (SAM-5 §5.14) that the kernel passes on and does not act upon
// itself.
var attentions = map[string]bool{"CAPACITY_DATA_HAS_CHANGED": true, "INQUIRY_DATA_HAS_CHANGED": true}

// parseEvent reads one event of the kernel: "action@path", then settings, each ended by a zero
// byte. ok is false for one that has nothing to do with paths.
func parseEvent(raw []byte) (c change, ok bool) {
	fields := map[string]string{}
	for part := range bytes.SplitSeq(raw, []byte{0}) {
		if k, v, ok := strings.Cut(string(part), "="); ok {
			fields[k] = v
		}
	}
	device := path.Base(fields["DEVPATH"])
	switch fields["SUBSYSTEM"] {
	case "iscsi_session", "iscsi_connection":
		return c, true
	case "block":
		return c, fields["DEVTYPE"] == "disk" && (strings.HasPrefix(device, "sd") || strings.HasPrefix(device, "dm-"))
	case "scsi":
		if fields["DEVTYPE"] != "scsi_device" {
			return c, false
		}
		if at, err := parseHCTL(device); err == nil && attentions[fields["SDEV_UA"]] {
			c.sized = append(c.sized, at)
		}
		return c, true
	}
	return c, false
}

// events implements host: the kernel's events in the worker's network namespace. The namespace of a
// container may get no events.
func (l *linux) events(ctx context.Context, tell func(change)) error {
	var f *os.File
	err := l.inNetwork(func() (err error) { f, err = listenKernel(); return err })
	if err != nil {
		return fmt.Errorf("socket for the kernel's events: %w", err)
	}
	defer func() { _ = f.Close() }()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		var n int
		var from unix.Sockaddr
		var rerr error
		err := conn.Read(func(fd uintptr) bool {
			n, from, rerr = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(rerr, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return err // the context has ended
		case errors.Is(rerr, unix.ENOBUFS):
			tell(change{all: true}) // more events than the socket holds
			continue
		case errors.Is(rerr, unix.EINTR):
			continue
		case rerr != nil:
			return rerr
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		if c, ok := parseEvent(buf[:n]); ok {
			tell(c)
		}
	}
}

func listenKernel() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20) // with the usual buffer, more is lost
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "kernel events"), nil
}

// inNetwork runs f on a thread in the worker's network namespace. What f opens stays there.
func (l *linux) inNetwork(f func() error) error {
	if !slices.ContainsFunc(l.enter, func(s string) bool { return strings.HasPrefix(s, "--net=") }) {
		return f()
	}
	ns, err := os.Open(filepath.Join(l.proc, "ns", "net"))
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("the worker's network: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// answerLimit bounds the question whether somebody listens at a portal.
const answerLimit = time.Second

// answers implements host.
func (l *linux) answers(ctx context.Context, portal netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return l.inNetwork(func() error {
		var d net.Dialer // which opens the socket on this thread: there is one address, and nothing to look up
		c, err := d.DialContext(ctx, "tcp", portal.String())
		if err == nil {
			err = c.Close()
		}
		return err
	}) == nil
}
