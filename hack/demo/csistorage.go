package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/kubelet"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/load"
)

// csiStorage drives gemel-csi as a cluster would.
type csiStorage struct {
	k      *kubelet.Kubelet
	plugin *lab.Process
	start  func() (*lab.Process, error)
}

// startCSI starts the plugin and waits until it is ready.
func startCSI(ctx context.Context, l *lab.Lab, binary string, pair [2]string, wait time.Duration) (*csiStorage, error) {
	socket := l.Path("csi.sock")
	s := &csiStorage{start: func() (*lab.Process, error) {
		return lab.Start("gemel-csi", l.Path("csi.log"), binary, "--endpoint", "unix://"+socket, "--mode", "all",
			"--state-dir", l.Path("csi"), "--pair-endpoint", pair[0], "--pair-endpoint", pair[1], "--attach", "userspace", "--io-deadline", wait.String())
	}}
	var err error
	if s.plugin, err = s.start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if s.k, err = kubelet.Connect(ctx, socket, l.Path("kubelet")); err != nil {
		return nil, errors.Join(err, s.plugin.Stop(5*time.Second))
	}
	return s, nil
}

func (s *csiStorage) create(ctx context.Context, name string, k kind, size int64, snapshot string) (*volume, error) {
	c, err := s.k.Create(ctx, name, size, k == block, snapshot)
	if err != nil {
		return nil, err
	}
	v := &volume{name: name, kind: k, size: c.Size, snap: snapshot != "", csi: c}
	if v.lun, err = lunOf(c.ID); err != nil {
		return v, err
	}
	return v, s.k.Publish(ctx, c)
}

// dataFile is what the writer writes to on a mounted volume.
const dataFile = "data"

func (s *csiStorage) open(v *volume) (load.Target, error) {
	if v.kind == block {
		return load.OpenFile(v.csi.Target, false)
	}
	return load.OpenFile(filepath.Join(v.csi.Target, dataFile), !v.snap)
}

func (s *csiStorage) expand(ctx context.Context, v *volume, size int64) (int64, error) {
	if err := s.k.Expand(ctx, v.csi, size); err != nil {
		return 0, err
	}
	v.size = v.csi.Size
	return v.usable()
}

// usable is the size as the application sees it: of the filesystem, or of the device.
func (v *volume) usable() (int64, error) {
	if v.kind == mounted {
		var st unix.Statfs_t
		if err := unix.Statfs(v.csi.Target, &st); err != nil {
			return 0, fmt.Errorf("statfs %s: %w", v.csi.Target, err)
		}
		return int64(st.Blocks) * st.Bsize, nil
	}
	f, err := os.Open(v.csi.Target)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

func (s *csiStorage) snapshot(ctx context.Context, v *volume, name string) (string, error) {
	snap, err := s.k.Snapshot(ctx, v.csi, name)
	if err != nil {
		return "", err
	}
	return snap.ID, nil
}

func (s *csiStorage) release(ctx context.Context, v *volume) error { return s.k.Unpublish(ctx, v.csi) }

func (s *csiStorage) destroy(ctx context.Context, v *volume) error { return s.k.Delete(ctx, v.csi) }

func (s *csiStorage) destroySnapshot(ctx context.Context, id string) error {
	return s.k.DeleteSnapshot(ctx, id)
}

func (s *csiStorage) close() error {
	return errors.Join(s.k.Close(), s.plugin.Stop(10*time.Second))
}
