// Package blockstat reads what the kernel has counted of block devices
// (Documentation/admin-guide/iostats.rst and Documentation/block/stat.rst of Linux).
package blockstat

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Counters of a device since the system started. They have a resolution of a millisecond.
type Counters struct {
	Busy    time.Duration // for which at least one request was at the device
	Reads   uint64        // that have ended
	Reading time.Duration // of all reads, added up
	All     time.Duration // of all reads, writes, discards and flushes, added up
}

// Device is a block device: a whole disk, a partition, or one that the kernel makes, such as a loop
// device.
type Device struct {
	root fs.FS
	path string // of its counters
}

// Of returns the device under the filesystem that a directory is in, by the number that stat(2) has
// for it. root is the root of the filesystem that has /sys. It is an error if the kernel counts
// nothing under that number: of a filesystem in memory, one of the network, and one that may have
// several devices, such as btrfs and overlay.
func Of(root fs.FS, dir string) (*Device, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	dev := uint64(info.Sys().(*syscall.Stat_t).Dev)
	d := &Device{root, fmt.Sprintf("sys/dev/block/%d:%d/stat", unix.Major(dev), unix.Minor(dev))}
	_, err = d.Read()
	return d, err
}

// Read the counters.
func (d *Device) Read() (c Counters, err error) {
	text, err := fs.ReadFile(d.root, d.path)
	if err != nil {
		return c, err
	}
	if c, err = parse(string(text)); err != nil {
		return c, fmt.Errorf("/%s: %w", d.path, err)
	}
	return c, nil
}

// The fields of stat, from 0 on. Kernels before 4.18 have no discards, and before 5.5 no flushes.
const (
	reads, readTicks, writeTicks, ioTicks, discardTicks, flushTicks = 0, 3, 7, 9, 14, 16

	fewest = 11
)

func parse(text string) (c Counters, err error) {
	fields := strings.Fields(text)
	if len(fields) < fewest {
		return c, fmt.Errorf("%d fields instead of %d at least", len(fields), fewest)
	}
	n := make([]uint64, flushTicks+1)
	for i := range min(len(fields), len(n)) {
		if n[i], err = strconv.ParseUint(fields[i], 10, 63); err != nil {
			return c, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	ms := func(i int) time.Duration { return time.Duration(n[i]) * time.Millisecond }
	return Counters{Busy: ms(ioTicks), Reads: n[reads], Reading: ms(readTicks), All: ms(readTicks) + ms(writeTicks) + ms(discardTicks) + ms(flushTicks)}, nil
}
