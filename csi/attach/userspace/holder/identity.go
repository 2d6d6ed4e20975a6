package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/durable"
)

const identityName = "holder.json"

// Identity identifies a process: PIDs are reused, but not together with the start time.
type Identity struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks after boot, proc(5)
}

// ErrGone: the process of a folder has ended.
var ErrGone = errors.New("holder has ended")

func writeIdentity(dir string) error {
	pid := os.Getpid()
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	return durable.WriteJSON(filepath.Join(dir, identityName), Identity{PID: pid, StartTime: start})
}

func startTime(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.Starttime, err
}

// ReadIdentity returns the process that serves or served the folder.
func ReadIdentity(dir string) (id Identity, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, identityName))
	if err != nil {
		return id, err
	}
	return id, json.Unmarshal(raw, &id)
}

// Signal sends a signal to the folder's holder and to no other process. ErrGone if it has ended.
func Signal(dir string, sig unix.Signal) error {
	id, err := ReadIdentity(dir)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("pidfd of holder %d: %w", id.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The descriptor pins the process, so the start time stays valid.
	if start, err := startTime(id.PID); err != nil || start != id.StartTime {
		return ErrGone
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrGone
		}
		return fmt.Errorf("signal holder %d: %w", id.PID, err)
	}
	return nil
}
