package node

import (
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

func TestRecordRoundTrip(t *testing.T) {
	s, err := New(Config{IQN: "iqn.x", StateDir: t.TempDir(), Attacher: struct{ attach.Attacher }{}})
	if err != nil {
		t.Fatal(err)
	}
	n := &s.unlocked
	if r, err := n.load("../../etc/passwd"); r != nil || err != nil {
		t.Fatalf("%v, %v: an id escaped from the folder", r, err)
	}
	want := &record{VolumeID: "v", Staging: "/s", Targets: []target{{Path: "/t1"}, {Path: "/t2", ReadOnly: true}},
		Attachment: attach.Attachment{VolumeID: "v", Auth: &attach.CHAP{User: "u", Secret: "hidden secret"}}}
	if err := n.save(want); err != nil {
		t.Fatal(err)
	}
	r, err := n.load("v")
	if err != nil || !r.has("/t2/") || !r.has("/s") || r.has("/other") || r.Attachment.Auth != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	r.without("/t1")
	if _, ok := r.target("/t1"); ok || len(r.Targets) != 1 || !r.Targets[0].ReadOnly {
		t.Fatalf("%+v", r.Targets)
	}
	r.Version = 99
	if err := n.forget("v"); err != nil {
		t.Fatal(err)
	}
	if r, err := n.load("v"); r != nil || err != nil {
		t.Fatal(r, err)
	}
	if err := n.forget("v"); err != nil {
		t.Fatalf("forgetting twice: %v", err)
	}
}

func TestMountOptionsOfFilesystems(t *testing.T) {
	for _, c := range []struct {
		fs   string
		ro   bool
		want string
	}{{"xfs", false, "nouuid"}, {"xfs", true, "nouuid,ro"}, {"ext4", false, ""}, {"ext4", true, "ro"}} {
		if got := strings.Join(mountOptions(c.fs, c.ro), ","); got != c.want {
			t.Errorf("%s %v: %q", c.fs, c.ro, got)
		}
	}
}

func TestParseExt4Size(t *testing.T) {
	n, err := parseExt4Size("Filesystem volume name:   <none>\nBlock count:              131072\nReserved block count:     0\nBlock size:               4096\n")
	if err != nil || n != 131072*4096 {
		t.Fatal(n, err)
	}
	if _, err := parseExt4Size("dumpe2fs: bad magic"); err == nil {
		t.Fatal("no error")
	}
}

func TestMountAtFindsTheTopmostMount(t *testing.T) {
	m, err := mountAt("/proc")
	if err != nil || m == nil || m.FSType != "proc" {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err := mountAt(t.TempDir()); m != nil || err != nil {
		t.Fatalf("%+v, %v", m, err)
	}
	if !hasOption("rw,relatime", "rw") || hasOption("rw,errors=remount-ro", "ro") {
		t.Fatal("hasOption")
	}
}
