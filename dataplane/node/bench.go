package node

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
)

// benchUnit is a LUN with one replica and write-back caching, as a plain target has it: the
// baseline that benchmarks and the conformance suite of the device server need. It is no LUN of the
// pair: not mirrored, not owned, not listed.
type benchUnit struct {
	host   string
	unit   *scsi.Unit
	server *scsi.Server

	mu sync.Mutex
}

// benchUUID is fixed: the file is found again after a restart.
const benchUUID = "00000000-0000-4000-8000-00000000be7c"

// openBench makes the LUN of --bench-lun.
func (n *Node) openBench() error {
	host, size, ok := strings.Cut(n.cfg.BenchLUN, "=")
	bytes, err := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || bytes <= 0 || bytes%meta.SizeStep != 0 {
		return bad("bench-lun", `%q must be "HOSTIQN=BYTES", a multiple of 1 MiB`, n.cfg.BenchLUN)
	}
	if err := n.store.Default().KeepLUN(benchUUID, bytes); err != nil {
		return fmt.Errorf("bench-lun: %w", err)
	}
	f, err := n.store.Default().OpenLUN(benchUUID)
	if err != nil {
		return fmt.Errorf("bench-lun: %w", err)
	}
	m, err := single.NewMedium(f, n.log)
	if err != nil {
		return fmt.Errorf("bench-lun: %w", err)
	}
	u, err := scsi.NewUnit(scsi.UnitConfig{UUID: benchUUID, SizeBytes: bytes, Thin: true, WriteCache: true}, m)
	if err != nil {
		return fmt.Errorf("bench-lun: %w", err)
	}
	m.Bind(u)
	n.io.bench.Store(&benchUnit{host: host, unit: u, server: n.scsi})
	n.log.Warn("exporting an unmirrored LUN for benchmarks", "host", host, "bytes", bytes)
	return nil
}

func (n *Node) isBench(u *scsi.Unit) bool {
	b := n.io.bench.Load()
	return b != nil && b.unit == u
}

// propose applies a change at once: there is no peer to replicate it to.
func (b *benchUnit) propose(nexus scsi.NexusID, change scsi.Change, done func(scsi.Outcome)) {
	b.mu.Lock()
	if change.ModeSelect != nil {
		next, out, changed := scsi.ApplyModeSelect(b.unit.Mode(), change.ModeSelect)
		if changed {
			b.unit.SetMode(next)
		}
		b.mu.Unlock()
		done(out)
		return
	}
	next, out, uas, aborts := scsi.ApplyPROut(b.unit.PR(), nexus, change.PROut)
	b.unit.SetPR(next)
	b.mu.Unlock()
	for _, ua := range uas {
		b.server.RaiseUA(b.unit, nil, func(id scsi.NexusID) bool { return id == ua.Nexus }, ua.ASC(), ua.ASCQ())
	}
	left := make(chan struct{}, len(aborts))
	for _, id := range aborts {
		b.server.AbortNexus(id, b.unit, func() { left <- struct{}{} })
	}
	if len(aborts) == 0 {
		done(out)
		return
	}
	go func() {
		for range aborts {
			<-left
		}
		done(out)
	}()
}
