package striped

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/page"
)

// volumeName is that of the striped volume on the disks.
const volumeName = "lun-striped"

// docs/without-gemel.md: when only the disks of one node are left, its commands find the parts of a
// striped volume, put them together, and show the files that are in it.
func TestPageWithoutGemel(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not installed: `make deps` installs it")
	}
	steps, err := page.Steps("without-gemel.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	dir := t.TempDir()
	build := exec.CommandContext(r.ctx, "go", "build", "-o", filepath.Join(dir, "bbolt"), "go.etcd.io/bbolt/cmd/bbolt")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, mnt := filepath.Join(dir, "files"), filepath.Join(dir, "mnt")
	r.must(os.Mkdir(files, 0o755))
	r.must(os.Mkdir(mnt, 0o755))
	want := make([]byte, 5*mib+123)
	_, _ = rand.Read(want)
	r.must(os.WriteFile(filepath.Join(files, "wanted"), want, 0o644))
	f := r.open()
	if out, err := exec.CommandContext(r.ctx, "mkfs.ext4", "-q", "-d", files, f.Name()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.must(f.Sync())
	r.must(f.Close())
	r.must(r.attacher.Detach(r.ctx, r.volume.VolumeID))
	for i := range harness.Names {
		r.must(r.pair.Kill(i))
	}

	for node, name := range harness.Names {
		var script []string
		for _, s := range []string{"luns", "record", "legs", "join"} {
			script = append(script, steps[s])
		}
		out := filepath.Join(dir, "joined-"+name)
		cmd := exec.CommandContext(r.ctx, "bash", "-euo", "pipefail", "-c", strings.Join(script, "\n"))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "state="+r.pair.State[node], "name="+volumeName, "out="+out, "mnt="+mnt)
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("node %s: %v\n%s", name, err, said)
		}
		got, err := os.ReadFile(filepath.Join(mnt, "wanted"))
		r.must(unix.Unmount(mnt, 0))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("node %s: the file is not what was written: %v", name, err)
		}
		for i, id := range r.luns {
			if !strings.Contains(string(said), id) {
				t.Errorf("node %s: LUN %d is not among the parts:\n%s", name, i, said)
			}
		}
		if !strings.Contains(string(said), `"members":["a","b"]`) {
			t.Errorf("node %s: the record is not shown:\n%s", name, said)
		}
	}

	// What is not whole is not put together.
	cmd := exec.CommandContext(r.ctx, "bash", "-euo", "pipefail", "-c", steps["legs"])
	cmd.Dir = r.pair.State[0]
	cmd.Env = append(os.Environ(), "name=lun-other")
	if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), "no LUN says that it is a part of lun-other") {
		t.Errorf("another volume: %v\n%s", err, said)
	}
	b, err := os.ReadFile(filepath.Join(r.pair.State[0], "luns.json"))
	r.must(err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	r.must(os.WriteFile(filepath.Join(r.pair.State[0], "luns.json"), []byte(strings.Join(lines[1:], "\n")), 0o644))
	cmd = exec.CommandContext(r.ctx, "bash", "-euo", "pipefail", "-c", steps["legs"])
	cmd.Dir = r.pair.State[0]
	cmd.Env = append(os.Environ(), "name="+volumeName)
	if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), "a part is missing") {
		t.Errorf("without one LUN: %v\n%s", err, said)
	}
}
