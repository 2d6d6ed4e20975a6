// Package holder is the process that serves one attachment: it logs in to the LUN, or to all LUNs
// of a striped volume, provides the volume as the only file of a FUSE filesystem and serves a
// control socket. It ends when the filesystem is
// unmounted.
package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/resident"
)

// Names in the attachment's folder.
const (
	MountName = "mnt"
	readyFD   = 3 // for Ready
)

// Config is read from standard input as one JSON document, so that credentials are not visible.
type Config struct {
	Attachment       attach.Attachment
	Auth, MutualAuth *attach.CHAP
	Others           []Login       // of the targets of Attachment.Others
	File             string        // name of the file in the mount
	Inode            uint64        // its inode number
	Deadline         time.Duration // for I/O without a working path
	NoUnitAfter      time.Duration // of the target reporting that the LUN is not mapped; 0: the initiator's default
	OpenLimit        time.Duration // for the first path
}

// Login has the credentials of a target; nil: none.
type Login struct{ Auth, MutualAuth *attach.CHAP }

// ConfigOf is a configuration with the attachment and its credentials, which an attachment leaves
// out when it is written.
func ConfigOf(a attach.Attachment) Config {
	c := Config{Attachment: a, Auth: a.Auth, MutualAuth: a.MutualAuth}
	for _, t := range a.Others {
		c.Others = append(c.Others, Login{t.Auth, t.MutualAuth})
	}
	return c
}

// targets are those of the attachment, with their credentials.
func (c Config) targets() []attach.Target {
	c.Attachment.SetCredentials(0, c.Auth, c.MutualAuth)
	for i := range min(len(c.Others), len(c.Attachment.Others)) {
		c.Attachment.SetCredentials(i+1, c.Others[i].Auth, c.Others[i].MutualAuth)
	}
	return c.Attachment.Targets()
}

// Ready is the holder's only message to its parent, as JSON.
type Ready struct {
	Error     string `json:"error,omitempty"`
	Refused   bool   `json:"refused,omitempty"` // the error is about the credentials
	Size      int64  `json:"size"`
	BlockSize int    `json:"blockSize"`
}

// Limits of a holder.
const (
	maxWrite   = 1 << 20         // bytes per FUSE request: the kernel's maximum
	background = 256             // direct I/O requests in flight
	maxMemory  = 96 << 20        // bytes of request buffers: about 90 requests of size maxWrite
	maxConfig  = 1 << 20         // bytes of the configuration
	closeLimit = 4 * time.Second // of flush and logout at the end: below the patience of stopHolder
)

// Run serves the attachment in dir until it is unmounted. It is the main function of the process.
func Run(dir string, in io.Reader, log *slog.Logger) error {
	tell := os.NewFile(readyFD, "ready")
	err := run(dir, in, tell, log)
	if err != nil {
		_ = json.NewEncoder(tell).Encode(Ready{Error: err.Error(), Refused: initiator.CredentialsRefused(err)})
	}
	return err
}

func run(dir string, in io.Reader, tell io.WriteCloser, log *slog.Logger) error {
	if err := writeIdentity(dir); err != nil {
		return err
	}
	var c Config
	if err := json.NewDecoder(io.LimitReader(in, maxConfig)).Decode(&c); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	log = log.With("volume", c.Attachment.VolumeID, "generation", c.Attachment.Generation)
	stayInMemory(log)

	// Before the mount exists, a signal ends the holder. Afterwards it must not: at a shutdown of
	// the machine the filesystem above is unmounted after SIGTERM was sent to all processes.
	start, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	start, cancel := context.WithTimeout(start, c.OpenLimit)
	defer cancel()
	dev, luns, err := open(start, c, log)
	if err != nil {
		return err
	}
	f := &files{dev: dev, legs: luns, name: c.File, inode: c.Inode, readOnly: c.Attachment.ReadOnly, log: log, RawFileSystem: fuse.NewDefaultRawFileSystem()}
	f.size.Store(dev.Size())
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		var err error
		if !c.Attachment.ReadOnly && !f.lost() {
			err = dev.Flush(ctx)
		}
		if err = errors.Join(err, luns.close(ctx)); err != nil {
			log.Warn("cannot flush or log out", "err", err)
		}
	}()
	srv, err := fuse.NewServer(f, filepath.Join(dir, MountName), &fuse.MountOptions{
		FsName: "gemel:" + c.Attachment.VolumeID, Name: "gemel", DirectMountStrict: true,
		MaxWrite: maxWrite, MaxBackground: background, MaxInflightRequestBytes: maxMemory,
		// Without CAP_ASYNC_DIO the kernel would wait for each direct request of the loop device
		// before the next.
		ExtraCapabilities: fuse.CAP_ASYNC_DIO, DisableXAttrs: true, DisableReadDirPlus: true, DisableSplice: true,
		Logger: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	})
	if err != nil {
		return fmt.Errorf("fuse mount: %w", err)
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	f.server = srv
	ctl, err := listenControl(dir, &control{files: f, attachment: c.Attachment})
	if err != nil {
		return errors.Join(err, srv.Unmount())
	}
	defer ctl.close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve()
	}()
	if err := srv.WaitMount(); err != nil {
		_ = srv.Unmount()
		<-served
		return fmt.Errorf("fuse mount: %w", err)
	}
	// A parent that has ended meanwhile does not matter: the next process finds the record.
	err = json.NewEncoder(tell).Encode(Ready{Size: dev.Size(), BlockSize: dev.BlockSize()})
	_ = tell.Close()
	log.Info("serving", "size", dev.Size(), "blockSize", dev.BlockSize(), "parent", err == nil)
	<-served
	log.Info("unmounted")
	return nil
}

func initiatorConfig(c Config, l attach.Leg, log *slog.Logger) initiator.Config {
	t := c.targets()[l.Target]
	return initiator.Config{InitiatorName: c.Attachment.HostIQN, Target: t.IQN, Portals: t.Portals, LUN: l.LUN, WWID: l.WWID,
		Sessions: c.Attachment.SessionCount(), Deadline: c.Deadline, NoUnitAfter: c.NoUnitAfter, Log: log, Auth: chap(t.Auth), MutualAuth: chap(t.MutualAuth)}
}

func chap(c *attach.CHAP) *initiator.CHAP {
	if c == nil {
		return nil
	}
	return &initiator.CHAP{User: c.User, Secret: c.Secret}
}

// stayInMemory prevents writeback from waiting for itself: pages of this process are not swapped or
// dropped, and the OOM killer spares it. All of it is best effort.
func stayInMemory(log *slog.Logger) {
	if err := resident.Lock(); err != nil {
		log.Warn("cannot lock the memory", "err", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		log.Warn("cannot lower the OOM score", "err", err)
	}
}
