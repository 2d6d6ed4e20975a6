// Command localtarget serves one thin LUN with one replica: the device server and the iSCSI server
// of gemel-target without a pair. Conformance runs and benchmarks stand on it. With two addresses
// it is two target ports on one LUN.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
	"github.com/gemel-storage/gemel/dataplane/store"
)

const lunUUID = "3b2c6d2e-54f4-4c8e-9a51-6f0f5f2f1a10"

type options struct {
	dir, listen, target, chap string
	size                      int64
	fua                       bool
	digests                   iscsi.DigestPolicy
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "state directory (required)")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:0", "addresses, separated by commas: one per target port, at most two")
	flag.StringVar(&o.target, "target", "iqn.2024-01.storage.gemel:local", "target name")
	flag.Int64Var(&o.size, "size", 1<<30, "LUN size in bytes")
	flag.StringVar(&o.chap, "chap", "", "user:secret[:mutual user:mutual secret] that every initiator has to know")
	flag.BoolVar(&o.fua, "write-through", false, "start with the write cache off")
	flag.Var(&o.digests, "digests", "header and data digests: allow, require or refuse")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "localtarget:", err)
		os.Exit(1)
	}
}

// hosts admits everybody, with the same credentials.
type hosts iscsi.Credentials

func (h hosts) Admit(string) iscsi.Host {
	return iscsi.Host{Credentials: iscsi.Credentials(h), Known: true, LUNs: true, Sure: true}
}

func credentials(s string) (hosts, error) {
	f := strings.Split(s, ":")
	switch {
	case s == "":
		return hosts{}, nil
	case len(f) == 2:
		return hosts{User: f[0], Secret: f[1]}, nil
	case len(f) == 4:
		return hosts{User: f[0], Secret: f[1], MutualUser: f[2], MutualSecret: f[3]}, nil
	}
	return hosts{}, errors.New("-chap wants user:secret or user:secret:user:secret")
}

func run(ctx context.Context, o options) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	cred, err := credentials(o.chap)
	if err != nil {
		return err
	}
	addresses := strings.Split(o.listen, ",")
	if o.dir == "" || len(addresses) > 2 {
		return errors.New("-dir is required, and -listen takes at most two addresses")
	}
	st, err := store.Open(o.dir, store.Identity{Cluster: "local", Pair: "local", Node: "a"}, store.Options{Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := st.Default().KeepLUN(lunUUID, o.size); err != nil {
		return err
	}
	file, err := st.Default().OpenLUN(lunUUID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	medium, err := single.NewMedium(file, log)
	if err != nil {
		return err
	}
	defer medium.Close()
	unit, err := scsi.NewUnit(scsi.UnitConfig{UUID: lunUUID, SizeBytes: o.size, Thin: true, WriteCache: !o.fua}, medium)
	if err != nil {
		return err
	}
	medium.Bind(unit)
	cl := &single.Cluster{}
	cl.AddUnit(unit)

	var listeners []net.Listener
	var portals []iscsi.Portal
	for i, a := range addresses {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		portals = append(portals, iscsi.Portal{Address: l.Addr().String(), Tag: uint16(i + 1)})
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(listeners))
	var servers []*iscsi.Server
	for i := range listeners {
		device := cl.AddServer(scsi.Config{TargetName: o.target, Log: log})
		srv, err := iscsi.New(iscsi.Config{TargetName: o.target, Portals: portals, Tag: uint16(i + 1), Logger: log,
			HeaderDigest: o.digests, DataDigest: o.digests}, device, cred)
		if err != nil {
			return err
		}
		servers = append(servers, srv)
	}
	for i, srv := range servers {
		wg.Go(func() { errs <- srv.Serve(ctx, listeners[i]) })
		fmt.Printf("listening on iscsi://%s/%s/0\n", listeners[i].Addr(), o.target)
	}
	select {
	case <-ctx.Done():
	case err = <-errs:
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, srv := range servers {
		err = errors.Join(err, srv.Shutdown(end))
	}
	wg.Wait()
	return err
}
