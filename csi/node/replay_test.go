package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
)

var errCut = fmt.Errorf("%w: interrupted by the test", attach.ErrFailed)

// storage is one LUN in a file with a loop device, and its publish. Its steps can be interrupted:
// the n-th fails, before or after it took effect.
type storage struct {
	attach.Attacher
	t      *testing.T
	image  string
	device string
	have   attach.Attachment
	now    attach.Attachment // the current publish
	steps  int
	cut    int
	late   bool
	// withdrawn: the publish is gone, and the new one does not exist yet.
	withdrawn  bool
	onWithdraw func()
	writable   int // attachments for writing
}

func (s *storage) step(f func() error) error {
	s.steps++
	if s.steps == s.cut && !s.late {
		return errCut
	}
	if err := f(); err != nil {
		return err
	}
	if s.steps == s.cut {
		return errCut
	}
	return nil
}

func (s *storage) Attach(ctx context.Context, a attach.Attachment) (string, error) {
	return s.device, s.step(func() error {
		if s.device != "" && s.have.Same(a) {
			return nil
		}
		if err := s.detach(); err != nil {
			return err
		}
		if a.Generation != s.now.Generation || s.now.ReadOnly && !a.ReadOnly {
			return fmt.Errorf("%w: publish %d is not in force", attach.ErrFailed, a.Generation)
		}
		args := []string{"-f", "--show", s.image}
		if a.ReadOnly {
			args = append([]string{"-r"}, args...)
		} else {
			s.writable++
		}
		out, err := exec.CommandContext(ctx, "losetup", args...).Output()
		if err != nil {
			return fmt.Errorf("losetup: %w", err)
		}
		s.device, s.have = strings.TrimSpace(string(out)), a
		return nil
	})
}

func (s *storage) detach() error {
	if s.device == "" {
		return nil
	}
	if out, err := exec.Command("losetup", "-d", s.device).CombinedOutput(); err != nil {
		return fmt.Errorf("losetup: %w: %s", err, out)
	}
	s.device = ""
	return nil
}

func (s *storage) Detach(context.Context, string) error { return s.step(s.detach) }

func (s *storage) Status(context.Context, string) (attach.Status, error) {
	if s.device == "" {
		return attach.Status{}, attach.ErrNotAttached
	}
	var st unix.Stat_t
	if err := unix.Stat(s.device, &st); err != nil {
		return attach.Status{}, err
	}
	return attach.Status{Attachment: s.have, Device: s.device, Rdev: st.Rdev}, nil
}

// Reach withdraws a publish in one step and creates the next in another, as a pair does for a node
// plugin.
func (s *storage) Reach(ctx context.Context, was attach.Attachment, replayed uint64) (attach.Attachment, error) {
	err := s.step(func() error {
		if replayed == s.now.Generation && !s.now.ReadOnly {
			if s.device != "" {
				s.t.Error("the publish is made read-only while the volume is attached")
			}
			s.withdrawn = true
			if s.onWithdraw != nil {
				s.onWithdraw()
			}
		}
		return nil
	})
	if err == nil && s.withdrawn {
		if ctx.Err() != nil {
			return s.now, fmt.Errorf("%w: %w", attach.ErrFailed, ctx.Err())
		}
		if !was.Replay || replayed != was.Generation || replayed != s.now.Generation {
			return s.now, fmt.Errorf("%w: no longer published", attach.ErrInvalid)
		}
		err = s.step(func() error {
			s.withdrawn = false
			s.now.Generation++
			s.now.LUN++
			s.now.ReadOnly, s.now.Replay = true, false
			return nil
		})
	}
	return s.now, err
}

// dirty returns a filesystem with synced files and a dirty log, as in a snapshot of a mounted
// volume.
func dirty(t *testing.T, fs string) string {
	t.Helper()
	for _, c := range []string{"mkfs." + fs, "losetup", "mount", "blkid", "dumpe2fs"} {
		if _, err := exec.LookPath(c); err != nil || os.Geteuid() != 0 {
			t.Skipf("needs root and %s", c)
		}
	}
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "gemel-replay-"); err == nil { // copied often, and synced
		dir = shm
		t.Cleanup(func() { _ = os.RemoveAll(shm) })
	}
	live, at, snap := filepath.Join(dir, "live"), filepath.Join(dir, "at"), filepath.Join(dir, "snap")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	run("truncate", "-s", "320M", live)
	run("mkfs."+fs, "-q", live)
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	run("mount", "-o", "loop", live, at)
	defer run("umount", at)
	for i := range 100 {
		f, err := os.Create(filepath.Join(at, fmt.Sprint(i)))
		if err == nil {
			_, err = f.WriteString("synced")
		}
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	run("cp", "--sparse=always", live, snap)
	return snap
}

// readers is a node that a filesystem was published to for the replay of its log.
func readers(t *testing.T, fs string) (*Server, *storage, *csi.NodeStageVolumeRequest) {
	t.Helper()
	q, a := stageRequest(t, false)
	a.Replay = true
	q.PublishContext = a.PublishContext()
	q.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	q.VolumeCapability.GetMount().FsType = fs
	st := &storage{t: t, image: dirty(t, fs), now: a}
	s := server(t, st)
	s.unlocked.cfg.Publications = st
	t.Cleanup(func() {
		if err := errors.Join(unmountAll(context.Background(), q.StagingTargetPath, false), s.unlocked.unmountReplay(context.Background(), "v"), st.detach()); err != nil {
			t.Error(err)
		}
	})
	return s, st, q
}

func files(t *testing.T, q *csi.NodeStageVolumeRequest) {
	t.Helper()
	for i := range 100 {
		if raw, err := os.ReadFile(filepath.Join(q.StagingTargetPath, fmt.Sprint(i))); err != nil || string(raw) != "synced" {
			t.Fatalf("file %d: %q, %v", i, raw, err)
		}
	}
}

// A log is replayed before the volume is mounted. If this is interrupted at any step, before or
// after it took effect, the next call completes it: in this process or another one, or after the
// volume was unstaged in between.
func TestInterruptedReplayIsCompleted(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		s, st, q := readers(t, fs)
		snapshot, published := st.image, st.now
		st.image += " restored"
		total := 100
		for cut := 0; cut <= total; cut++ {
			for _, late := range []bool{false, true} {
				if out, err := exec.CommandContext(t.Context(), "cp", "--sparse=always", snapshot, st.image).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				st.now, st.steps, st.cut, st.late, st.writable = published, 0, cut, late, 0
				_, err := s.NodeStageVolume(t.Context(), q)
				// The call polls until the publish is read-only.
				if c := status.Code(err); c != codes.OK && (cut == 0 || c != codes.Unavailable) {
					t.Fatalf("%s, step %d (late %v): %v", fs, cut, late, err)
				}
				if cut == 0 {
					total = st.steps
				}
				switch st.cut = 0; cut % 3 {
				case 1: // a restarted plugin
					s = &Server{unlocked: unlocked{cfg: s.unlocked.cfg, log: s.unlocked.log, dir: s.unlocked.dir, mounter: s.unlocked.mounter, stuck: map[string]struct{}{}}}
				case 2: // the pod was deleted, and another one starts before the volume is unpublished, or after it
					st.withdrawn = false
					if _, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: q.StagingTargetPath}); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					if _, err := s.NodeStageVolume(t.Context(), q); err != nil {
						t.Fatalf("%s, after step %d (late %v) was interrupted: %v", fs, cut, late, err)
					}
				}
				files(t, q)
				if m, err := mountAt(q.StagingTargetPath); err != nil || !readOnly(m) || !st.have.ReadOnly {
					t.Fatalf("%s, step %d: %+v, %v", fs, cut, m, err)
				}
				if cut == 0 && st.writable != 1 {
					t.Errorf("%s: attached for writing %d times", fs, st.writable)
				}
				if _, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: q.StagingTargetPath}); err != nil {
					t.Fatal(err)
				}
				if cut == 0 {
					break
				}
			}
		}
		t.Logf("%s: %d steps", fs, total)
		// Published again, the log is clean: there is no call to the storage, and no attachment for
		// writing.
		st.steps, st.writable = 0, 0
		q.PublishContext = st.now.PublishContext()
		if _, err := s.NodeStageVolume(t.Context(), q); err != nil || st.steps != 1 || st.writable != 0 {
			t.Errorf("%s: %v, %d steps, %d attachments for writing", fs, err, st.steps, st.writable)
		}
	}
}

// If a call ends after the publish was withdrawn and before the new one exists, a restarted plugin
// continues from there: nothing is replayed again.
func TestReplayOfAnEarlierCallIsNotRepeated(t *testing.T) {
	s, st, q := readers(t, "ext4")
	ctx, cancel := context.WithCancel(t.Context())
	st.onWithdraw = cancel
	if _, err := s.NodeStageVolume(ctx, q); status.Code(err) != codes.Unavailable || !st.withdrawn {
		t.Fatalf("%v, withdrawn %v", err, st.withdrawn)
	}
	s = &Server{unlocked: unlocked{cfg: s.unlocked.cfg, log: s.unlocked.log, dir: s.unlocked.dir, mounter: s.unlocked.mounter, stuck: map[string]struct{}{}}}
	if _, err := s.NodeStageVolume(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	files(t, q)
	if st.writable != 1 || !st.have.ReadOnly {
		t.Errorf("attached for writing %d times, now %+v", st.writable, st.have)
	}
}

// A filesystem with a dirty log is not mounted read-only, however it was published.
func TestDirtyLogIsRejected(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		s, st, q := readers(t, fs)
		st.now.Replay, st.now.ReadOnly = false, true
		q.PublishContext = st.now.PublishContext()
		_, err := s.NodeStageVolume(t.Context(), q)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "delete the pods") {
			t.Fatalf("%s: %v", fs, err)
		}
		if m, err := mountAt(q.StagingTargetPath); m != nil || err != nil {
			t.Fatalf("%s: %+v, %v", fs, m, err)
		}
		// With a mount option it is mounted without its log.
		if _, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: q.StagingTargetPath}); err != nil {
			t.Fatal(err)
		}
		q.VolumeCapability.GetMount().MountFlags = []string{withoutLog[fs]}
		if _, err := s.NodeStageVolume(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", fs, err)
		}
	}
}

// If a log cannot be replayed, the error says so, nothing is mounted, and no replay is reported.
func TestDamagedLogIsReportedAndNotMounted(t *testing.T) {
	for fs, magic := range map[string][]byte{"xfs": {0xfe, 0xed, 0xba, 0xbe}, "ext4": {0xc0, 0x3b, 0x39, 0x98}} {
		s, st, q := readers(t, fs)
		raw, err := os.ReadFile(st.image)
		if err != nil {
			t.Fatal(err)
		}
		damaged := 0
		for at := 0; at < len(raw); at += 512 {
			if bytes.HasPrefix(raw[at:], magic) {
				copy(raw[at+12:], bytes.Repeat([]byte{0xa5}, 64)) // past the magic number: lengths, checksums
				damaged++
			}
		}
		if err := os.WriteFile(st.image, raw, 0o600); err != nil || damaged == 0 {
			t.Fatal(err, damaged)
		}
		_, err = s.NodeStageVolume(t.Context(), q)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), withoutLog[fs]) {
			t.Errorf("%s: %v", fs, err)
		}
		if m, err := mountAt(q.StagingTargetPath); m != nil || err != nil || st.now.ReadOnly {
			t.Errorf("%s: %+v, %v; published %+v", fs, m, err, st.now)
		}
	}
}

// Without a way to report the replay, nothing is done.
func TestReplayRequiresAnEndpoint(t *testing.T) {
	q, a := stageRequest(t, false)
	a.Replay = true
	q.PublishContext = a.PublishContext()
	d := &device{}
	s := server(t, d)
	if _, err := s.NodeStageVolume(t.Context(), q); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--enroll-endpoint") || d.attached != 0 {
		t.Fatal(err, d.attached)
	}
}
