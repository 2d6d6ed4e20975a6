package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// probeFile is one block in the folder of a backing volume.
const (
	probeFile  = "probe"
	probeBlock = 4096
)

// FaultProbe is what Options.Faults sees of Probe.
const FaultProbe = "probe"

// Probe returns when the disk of the backing volume, and those of its members, have taken a block
// durably: they are at work. A flush would not tell, since one that has nothing to write asks no
// disk. A volume without space is at work too. Any other failure makes the store untrusted (R12).
func (v *BackingVolume) Probe() error {
	errs := make([]error, len(v.members))
	var wg sync.WaitGroup
	for i, m := range v.members {
		wg.Go(func() { errs[i] = m.probe() })
	}
	err := v.probe()
	wg.Wait()
	return errors.Join(append(errs, err)...)
}

func (v *BackingVolume) probe() (err error) {
	if err := v.s.Failed(); err != nil {
		return err
	}
	rel := filepath.Join(v.rel, probeFile)
	if err = v.s.fault(FaultProbe, rel, 0, probeBlock); err == nil {
		err = v.writeProbe()
	}
	if err == nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return nil
	}
	err = fmt.Errorf("write %s: %w: %w", rel, ErrMedia, err)
	v.s.fail(err)
	return err
}

func (v *BackingVolume) writeProbe() (err error) {
	f, err := os.OpenFile(filepath.Join(v.dir, probeFile), os.O_CREATE|os.O_RDWR|syscall.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(make([]byte, probeBlock), 0)
	return err
}
