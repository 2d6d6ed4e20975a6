package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The way of attaching follows from the flag, the kernel and the attached volumes.
func TestChooseKeepsAttachedVolumes(t *testing.T) {
	can, cannot := []string(nil), []string{"iscsi_tcp", "dm_multipath"}
	for _, c := range []struct {
		requested         string
		missing           []string
		kernel, userspace int // volumes that are attached
		mode, says        string
	}{
		{attachKernel, can, 0, 0, attachKernel, "--attach kernel"},
		{attachKernel, cannot, 0, 0, attachKernel, "--attach kernel"}, // never a way that the flag does not allow: readiness reports it
		{attachKernel, can, 2, 0, attachKernel, "--attach kernel"},
		{attachUserspace, can, 0, 0, attachUserspace, "--attach userspace"},
		{attachUserspace, can, 0, 3, attachUserspace, "--attach userspace"},
		{attachAuto, can, 0, 0, attachKernel, "has iSCSI and dm-multipath"},
		{attachAuto, cannot, 0, 0, attachUserspace, "has no iscsi_tcp, dm_multipath"},
		{attachAuto, can, 0, 1, attachUserspace, "1 volumes are attached this way; to use the kernel, drain"},
		{attachAuto, cannot, 0, 1, attachUserspace, "1 volumes are attached this way"},
		{attachAuto, cannot, 4, 0, attachKernel, "4 volumes are attached this way"}, // the kernel was replaced meanwhile: readiness reports it
	} {
		got, err := choose(c.requested, facts{c.missing, c.kernel, c.userspace})
		if err != nil || got.mode != c.mode || !strings.Contains(got.why, c.says) || !strings.HasPrefix(got.why, "--attach "+c.requested) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		if c.missing != nil && strings.Contains(got.why, "could") {
			t.Errorf("%+v: %s", c, got.why)
		}
	}
	for _, c := range []struct {
		requested         string
		kernel, userspace int
	}{{attachKernel, 0, 1}, {attachKernel, 1, 1}, {attachUserspace, 1, 0}, {attachUserspace, 1, 1}, {attachAuto, 1, 1}} {
		if got, err := choose(c.requested, facts{nil, c.kernel, c.userspace}); err == nil || !strings.Contains(err.Error(), "--attach "+c.requested) {
			t.Errorf("%+v: %+v, %v: volumes would be forgotten", c, got, err)
		}
	}
}

// The records on disk decide, and the kernel is checked only with auto.
func TestChooseOnAWorker(t *testing.T) {
	dir := t.TempDir()
	can := func(string) ([]string, error) { return nil, nil }
	cannot := func(string) ([]string, error) { return []string{"iscsi_tcp"}, nil }
	blind := func(string) ([]string, error) { return nil, errors.New("no proc") }
	try := func(requested string, missing func(string) ([]string, error)) string {
		c, err := (&config{StateDir: dir, Attach: requested, HostProc: "/proc/1"}).choose(missing)
		if err != nil {
			return err.Error()
		}
		return c.mode
	}
	expect := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s, not %s", got, want)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, kernelFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, kernelFolder, ".tmp-v1.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(try(attachAuto, can), attachKernel)
	expect(try(attachAuto, cannot), attachUserspace)
	expect(try(attachAuto, blind), "no proc") // it does not guess
	expect(try(attachKernel, blind), attachKernel)
	expect(try(attachUserspace, blind), attachUserspace)
	if err := os.MkdirAll(filepath.Join(dir, userspaceFolder, "v1"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(try(attachAuto, can), attachUserspace) // a restart, with a kernel that supports it now
	expect(try(attachKernel, can), "drain this worker")
	if err := os.RemoveAll(filepath.Join(dir, kernelFolder)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, userspaceFolder), filepath.Join(dir, kernelFolder)); err != nil {
		t.Fatal(err)
	}
	expect(try(attachAuto, cannot), attachKernel)
	expect(try(attachUserspace, can), "drain this worker")
}
