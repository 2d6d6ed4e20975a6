package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

func reasons(list []*csi.VolumeHealth_VolumeHealthEntry) (out []string) {
	for _, e := range list {
		out = append(out, e.Reason)
	}
	return out
}

// fixed has one attachment with these paths.
type fixed struct {
	attach.Attacher
	paths []attach.Path
}

func (a fixed) Status(context.Context, string) (attach.Status, error) {
	return attach.Status{Paths: a.paths}, nil
}

// Hazard 9: a path that is used without ALUA is reported, with the remedy.
func TestHazard9Health(t *testing.T) {
	good, deaf := attach.Path{Portal: "a", Connected: true, Current: true}, attach.Path{Portal: "b", Connected: true, NoALUA: true, LastError: "no handler on sdb"}
	down := attach.Path{Portal: "b", LastError: "no session"}
	for _, c := range []struct {
		paths []attach.Path
		want  []string
	}{
		{[]attach.Path{good, {Portal: "b", Connected: true}}, nil},
		{[]attach.Path{good, deaf}, []string{"NoALUAHandler"}},
		{[]attach.Path{good, down}, []string{"HostRedundancyLost"}},
		{[]attach.Path{deaf, {Portal: "a", LastError: "no session"}}, []string{"NoPath", "NoALUAHandler"}},
		{[]attach.Path{good, {Portal: "b", Connected: true}, {Portal: "b", Session: 1, LastError: "no session"}}, []string{"SessionMissing"}},
		{[]attach.Path{good, {Portal: "a", Session: 1, LastError: "no session"}, down, {Portal: "b", Session: 1, LastError: "no session"}}, []string{"HostRedundancyLost", "SessionMissing"}},
	} {
		s, err := New(Config{IQN: "iqn.x", StateDir: t.TempDir(), Attacher: fixed{paths: c.paths}})
		if err != nil {
			t.Fatal(err)
		}
		got := s.unlocked.findings(t.Context(), &record{VolumeID: "v", Block: true})
		if !slices.Equal(reasons(got), c.want) {
			t.Errorf("%v, not %v", got, c.want)
		}
		for _, e := range got {
			if e.Reason == "NoALUAHandler" && (!strings.Contains(e.Message, "modprobe scsi_dh_alua") || !strings.Contains(e.Message, "sdb") ||
				e.Status != csi.VolumeHealthErrorType_DEGRADED) {
				t.Error(e)
			}
		}
	}
}

// Hazard 22: a filesystem with an error is reported, whether or not its options show it.
func TestHazard22Filesystem(t *testing.T) {
	for _, c := range []struct {
		options, errors string
		wantRO          bool
		want            []string
	}{
		{"rw,errors=remount-ro", "", false, nil},
		{"ro", "", false, []string{"FilesystemReadOnly"}},
		{"ro", "ext4 has counted 2 errors", false, []string{"FilesystemReadOnly"}},
		{"ro", "", true, nil},
		{"ro", "ext4 has counted 2 errors", true, []string{"FilesystemErrors"}},
		{"rw", "ext4 has counted 2 errors", false, []string{"FilesystemErrors"}},
		{"rw,errors=remount-ro", "ext4 has counted 2 errors", false, []string{"FilesystemReadOnly"}},
		{"rw,emergency_ro", "", false, []string{"FilesystemReadOnly"}},
		{"rw,shutdown", "", true, []string{"FilesystemReadOnly"}},
	} {
		got := filesystemFindings(&mountinfo.Info{Options: "rw", VFSOptions: c.options}, c.errors, c.wantRO)
		if !slices.Equal(reasons(got), c.want) || c.errors != "" && !strings.Contains(got[0].Message, c.errors) {
			t.Errorf("%+v: %v", c, got)
		}
	}

	sys := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(sys, "fs/ext4/dm-3", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"dev/block", "fs/ext4/dm-3"} {
		if err := os.MkdirAll(filepath.Join(sys, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../devices/virtual/block/dm-3", filepath.Join(sys, "dev/block/253:3")); err != nil {
		t.Fatal(err)
	}
	rdev := unix.Mkdev(253, 3)
	write("errors_count", "0\n")
	if got := ext4Errors(sys, rdev) + ext4Errors(sys, unix.Mkdev(253, 4)); got != "" {
		t.Error(got)
	}
	write("errors_count", "2\n")
	write("last_error_func", "ext4_lookup\n")
	write("last_error_line", "1785\n")
	if got := ext4Errors(sys, rdev); got != "ext4 has counted 2 errors, the last in ext4_lookup, line 1785" {
		t.Error(got)
	}
}
