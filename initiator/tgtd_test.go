package initiator

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/freeport"
)

// tgt is Debian's iSCSI target daemon, a peer that is not ours, with one target and one LUN (number
// 1).
type tgt struct {
	portal, iqn string
	control     string
	cmd         *exec.Cmd
	image       string
}

const tgtSize = 64 << 20

// startTgt runs a tgtd of the test's own. It skips, with the reason, where that cannot work.
func startTgt(t *testing.T) *tgt {
	t.Helper()
	path, err := exec.LookPath("tgtd")
	if err != nil {
		if _, err2 := os.Stat("/usr/sbin/tgtd"); err2 != nil {
			t.Skip("tgtd is not installed (Debian package tgt)")
		}
		path = "/usr/sbin/tgtd"
	}
	if os.Geteuid() != 0 {
		t.Skip("tgtd needs root for its control socket")
	}
	port, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	x := &tgt{portal: fmt.Sprintf("127.0.0.1:%d", port), iqn: "iqn.2026-01.test.gemel:peer",
		control: strconv.Itoa(port & 0x7fff), image: filepath.Join(t.TempDir(), "lun")}
	f, err := os.Create(x.image)
	if err == nil {
		err = f.Truncate(tgtSize)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	x.start(t, path)
	t.Cleanup(func() { x.kill() })
	return x
}

func (x *tgt) start(t *testing.T, path string) {
	t.Helper()
	var log strings.Builder
	x.cmd = exec.Command(path, "-f", "-C", x.control, "--iscsi", "portal="+x.portal)
	x.cmd.Stdout, x.cmd.Stderr = &log, &log
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "tgtd answers", func() bool { return x.admAllowed("--op", "show", "--mode", "target") == nil })
	x.adm(t, "--op", "new", "--mode", "target", "--tid", "1", "-T", x.iqn)
	x.adm(t, "--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", x.image)
	x.adm(t, "--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL")
	eventually(t, "tgtd listens", func() bool {
		c, err := net.Dial("tcp", x.portal)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (x *tgt) kill() {
	if x.cmd != nil {
		_ = x.cmd.Process.Kill()
		_ = x.cmd.Wait()
		x.cmd = nil
	}
}

func (x *tgt) admAllowed(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	adm, err := exec.LookPath("tgtadm")
	if err != nil {
		adm = "/usr/sbin/tgtadm"
	}
	args = append([]string{"-C", x.control, "--lld", "iscsi"}, args...)
	out, err := exec.CommandContext(ctx, adm, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tgtadm: %w: %s", err, out)
	}
	return nil
}

func (x *tgt) adm(t *testing.T, args ...string) {
	t.Helper()
	if err := x.admAllowed(args...); err != nil {
		t.Fatal(err)
	}
}

// digests sets what the target permits; it takes None whenever it may.
func (x *tgt) digests(t *testing.T, header, data bool) {
	t.Helper()
	for key, on := range map[string]bool{"HeaderDigest": header, "DataDigest": data} {
		v := "None"
		if on {
			v = "CRC32C"
		}
		x.adm(t, "--mode", "target", "--op", "update", "--tid", "1", "-n", key, "-v", v)
	}
}

func (x *tgt) config() SessionConfig {
	return SessionConfig{InitiatorName: "iqn.2026-01.test.gemel:host", Target: x.iqn, Portal: x.portal}
}

// eventually polls a condition with a generous bound.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
