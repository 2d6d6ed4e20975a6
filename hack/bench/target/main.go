// Command target serves one unmirrored LUN (number 1) from a directory: the data path of gemel-target (target/iscsi,
// target/scsi, target/lun, target/store) without a pair around it. It is a means of the benchmark and of profiling, not a product.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" //nolint:gosec // loopback only, off by default
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/target/alua"
	"github.com/gemel-storage/gemel/target/iscsi"
	"github.com/gemel-storage/gemel/target/lun"
	"github.com/gemel-storage/gemel/target/scsi"
	"github.com/gemel-storage/gemel/target/store"
)

const lunUUID = "6c6f6f70-6261-4b00-8000-62656e636831"

func main() {
	listen := flag.String("listen", "127.0.0.1:3261", "iSCSI portal")
	dir := flag.String("dir", "", "state directory")
	iqn := flag.String("iqn", "iqn.2026-01.io.gemel:bench", "target name")
	size := flag.Int64("size", 1<<30, "bytes of the LUN")
	debug := flag.String("pprof", "", "loopback address for net/http/pprof")
	flag.Parse()
	if err := run(*listen, *dir, *iqn, *size, *debug); err != nil {
		fmt.Fprintln(os.Stderr, "bench target:", err)
		os.Exit(1)
	}
}

func run(listen, dir, iqn string, size int64, debug string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if debug != "" {
		go func() { log.Error("pprof", "err", http.ListenAndServe(debug, nil)) }() //nolint:gosec // a tool
	}
	st, err := store.Open(dir, store.Identity{Cluster: "bench", Pair: "bench", Node: "a"}, store.Options{Log: log})
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.CreateLUN(lunUUID, size); err != nil {
		return err
	}
	file, err := st.OpenLUN(lunUUID)
	if err != nil {
		return err
	}
	defer file.Close()
	medium, err := lun.NewLocal(file, log)
	if err != nil {
		return err
	}
	defer medium.Close()
	unit, err := scsi.NewUnit(scsi.UnitConfig{UUID: lunUUID, SizeBytes: size, Thin: true, WriteCache: true}, medium)
	if err != nil {
		return err
	}
	medium.Bind(unit)
	device := scsi.NewServer(&single{unit: unit}, scsi.Config{TargetName: iqn, Port: 1, Log: log})
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server, err := iscsi.New(iscsi.Config{TargetName: iqn, Tag: 1, Logger: log,
		Portals: []iscsi.Portal{{Address: l.Addr().String(), Tag: 1}}}, device, anyHost{})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.WithoutCancel(ctx), l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(end), ignoreClosed(<-served))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// anyHost admits everybody without authentication: loopback only.
type anyHost struct{}

func (anyHost) Admit(string) (iscsi.Credentials, bool) { return iscsi.Credentials{}, true }

// single is a cluster of one node with one unit.
type single struct{ unit *scsi.Unit }

func (s *single) Lookup(_ string, n uint16) *scsi.Unit {
	if n == 1 {
		return s.unit
	}
	return nil
}

func (s *single) LUNs(_ string, to []uint16) []uint16 { return append(to, 1) }

func (s *single) Groups(*scsi.Unit) alua.Report {
	return alua.Report{Groups: []alua.Group{{Tag: 1, State: alua.Optimized, Preferred: true, Ports: []uint16{1}}}}
}

// Propose refuses: reservations and mode changes are not what is measured here.
func (s *single) Propose(_ *scsi.Unit, _ scsi.NexusID, _ scsi.Change, done func(scsi.Outcome)) {
	done(scsi.Outcome{Status: scsi.StatusReservationConflict})
}

func (s *single) Reset(_ *scsi.Unit, _ scsi.ResetScope, _ scsi.NexusID, done func(bool)) { done(true) }
