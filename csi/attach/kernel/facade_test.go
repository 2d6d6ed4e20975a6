package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
)

// entered gives a host the script as the way into the worker: it gets the tool's command line, and
// writes it to the log that is returned.
func entered(t *testing.T, l *linux, script string) (calls func() string) {
	t.Helper()
	dir := t.TempDir()
	enter, log := filepath.Join(dir, "enter"), filepath.Join(dir, "log")
	if err := os.WriteFile(enter, fmt.Appendf(nil, "#!/bin/sh\necho \"$*\" >>%s\n%s\n", log, script), 0o700); err != nil {
		t.Fatal(err)
	}
	l.enter = []string{enter}
	return func() string {
		raw, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(raw)
	}
}

// mapOfFixture is the map that nothing has mounted.
func mapOfFixture(t *testing.T, l *linux) dmMap {
	t.Helper()
	maps, err := l.maps()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if len(m.users()) == 0 {
			return m
		}
	}
	t.Fatal("every map is mounted")
	return dmMap{}
}

// attributeOf replaces what a map shows in sysfs.
func attributeOf(t *testing.T, l *linux, m dmMap, name, value string) {
	t.Helper()
	if err := os.WriteFile(l.path("/sys/block", m.kernel, "dm", name), []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Hazard 4: exactly one LUN of one target is scanned.
func TestHazard4Scan(t *testing.T) {
	l := &linux{worker: worker{root: t.TempDir()}}
	scan := l.path("/sys/class/scsi_host/host7/scan")
	if err := os.MkdirAll(filepath.Dir(scan), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(scan, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.do(t.Context(), step{do: doScan, at: hctl{host: 7, channel: 0, target: 2, lun: 0x4100}}); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(scan); err != nil || string(raw) != "0 2 16640" {
		t.Fatalf("%q, %v", raw, err)
	}
}

// Hazard 10: a silent loss is declared no sooner than twice the age limit after the last sign of
// life. What was sent to a lost session is given back at once, by iscsid alone: multipathd would
// make it a second at least.
func TestHazard10Timers(t *testing.T) {
	if noopInterval+noopTimeout < 2*iscsi.DefaultMaxAge.Seconds() {
		t.Errorf("a session is given up %d s after its last sign of life, the target's age limit is %s", noopInterval+noopTimeout, iscsi.DefaultMaxAge)
	}
	u := must(t, attachment("v", 1, 1, wwid1))
	record := string(nodeRecord{initiator: u.initiator, target: u.target, portal: u.portals[0]}.render())
	value := func(key string) string {
		_, after, _ := strings.Cut(record, "\n"+key+" = ")
		v, _, _ := strings.Cut(after, "\n")
		return v
	}
	fast := ""
	for _, s := range settings(30) {
		if s.key == "fast_io_fail_tmo" {
			fast = s.value
		}
	}
	if r := value("node.session.timeo.replacement_timeout"); r != "0" || fast != "off" {
		t.Errorf("replacement_timeout %q, fast_io_fail_tmo %q", r, fast)
	}
	if value("node.conn[0].timeo.noop_out_interval") != "1" || value("node.conn[0].timeo.noop_out_timeout") != "1" {
		t.Error(record)
	}
}

// Hazard 12: the number of a map belongs to another map between the observation and the step.
func TestHazard12Reused(t *testing.T) {
	l := openFixture(t, "two-volumes")
	m := mapOfFixture(t, l)
	calls := entered(t, l, "exit 0")
	attributeOf(t, l, m, "uuid", "mpath-3"+wwid2)
	for _, v := range []verb{doFlush, doRemove, doWipe, doFail, doUnmount} {
		if err := l.do(t.Context(), step{do: v, dm: m}); err != nil {
			t.Error(v, err)
		}
	}
	if c := calls(); c != "" {
		t.Errorf("done to somebody else's map: %s", c)
	}
}

// Hazard 12: mounted between the look and the act.
func TestHazard12MountedMeanwhile(t *testing.T) {
	l := openFixture(t, "two-volumes")
	m := mapOfFixture(t, l)
	calls := entered(t, l, "exit 0")
	f, err := os.OpenFile(l.tables[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(f, "900 1 %s / /mnt/late rw - xfs /dev/%s rw\n", m.dev, m.kernel); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.do(t.Context(), step{do: doFlush, dm: m}); !errors.Is(err, attach.ErrBusy) || calls() != "" {
		t.Fatal(err, calls())
	}
}

// Hazard 13: multipath suspends a map on its way to flush it; one that fails is resumed.
func TestHazard13FailedFlush(t *testing.T) {
	for _, suspended := range []bool{true, false} {
		l := openFixture(t, "two-volumes")
		m := mapOfFixture(t, l)
		flag := l.path("/sys/block", m.kernel, "dm/suspended")
		script := `case "$1" in multipath) echo it failed >&2; `
		if suspended {
			script += "echo 1 >" + flag + "; "
		}
		calls := entered(t, l, script+"exit 1;; esac")
		if err := l.do(t.Context(), step{do: doFlush, dm: m}); !errors.Is(err, errExit) {
			t.Fatal(err)
		}
		if c := calls(); strings.Contains(c, "dmsetup resume --uuid mpath-3"+m.id.String()) != suspended {
			t.Errorf("suspended %v: %s", suspended, c)
		}
	}
}

// Hazard 20: the worker's own tools are run, in its namespaces, whatever this process's own folder
// of programs has.
func TestHazard20Entered(t *testing.T) {
	l := &linux{worker: worker{root: t.TempDir()}}
	calls := entered(t, l, "exit 0")
	if _, err := l.run(t.Context(), toolLimit, "true", "-x"); err != nil || calls() != "true -x\n" {
		t.Fatal(err, calls())
	}
	// Folders in proc of a process with this one's namespaces, and of one with others.
	proc := t.TempDir()
	for _, d := range []string{"ns", "root"} {
		if err := os.MkdirAll(filepath.Join(proc, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"mnt", "net", "ipc"} {
		own, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil {
			t.Fatal(err)
		}
		if n == "mnt" {
			own = "mnt:[1]"
		}
		if err := os.Symlink(own, filepath.Join(proc, "ns", n)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := findWorker(proc)
	if err != nil {
		t.Fatal(err)
	}
	if argv := strings.Join(w.enter, " "); argv != "nsenter --mount="+filepath.Join(proc, "ns/mnt")+" --" || w.root != filepath.Join(proc, "root") {
		t.Errorf("%q, files at %s", argv, w.root)
	}
}
