package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
)

// hotCases are LUNs that the page cache holds, on one session: depths, block sizes, mixtures,
// flushes.
func hotCases() (list []testCase) {
	for _, depth := range []int{1, 4, 16, 32, 128} {
		systems := []string{sysDefault, sysUnmirrored, sysTgt, sysQSD}
		rows := ""
		switch depth { // those that explain the default case
		case 1:
			systems = append(systems, sysQSDTLS, sysPlain, sysTmpFS, sysHops, sysHopsTLS)
			rows = "mtls_to_plain_qd1"
		case 32:
			systems = append(systems, sysQSDTLS, sysPlain, sysTmpFS, sysHopsTLS)
			rows = "mtls_to_plain_qd32"
		}
		list = append(list, hotCase(fmt.Sprintf("mirrored_write_4k_qd%d", depth), rows, depth == 1 || depth == 32, load.Workload{Block: 4096, Depth: depth}, systems...))
	}
	for _, depth := range []int{1, 4, 16, 32, 128} {
		list = append(list, hotCase(fmt.Sprintf("randread_4k_qd%d", depth), "", depth == 1 || depth == 32, load.Workload{Reads: 100, Block: 4096, Depth: depth},
			sysDefault, sysTgt, sysQSD))
	}
	list = append(list,
		hotCase("mixed_70_30_4k_qd32", "", false, load.Workload{Reads: 70, Block: 4096, Depth: 32}, sysDefault, sysTgt, sysQSD),
		hotCase("randread_16k_qd16", "", false, load.Workload{Reads: 100, Block: 16 << 10, Depth: 16}, sysDefault, sysTgt, sysQSD),
		hotCase("mirrored_write_16k_qd16", "", false, load.Workload{Block: 16 << 10, Depth: 16}, sysDefault, sysUnmirrored, sysTgt, sysQSD),
		hotCase("seqread_1m_qd4", "", true, load.Workload{Reads: 100, Block: 1 << 20, Depth: 4, Sequential: true}, sysDefault, sysTgt, sysQSD),
		hotCase("mirrored_seqwrite_1m_qd4", "", true, load.Workload{Block: 1 << 20, Depth: 4, Sequential: true}, sysDefault, sysUnmirrored, sysTgt, sysQSD, sysHopsTLS),
		hotCase("fua_qd1", "", false, load.Workload{Block: 4096, Depth: 1, FUA: true}, sysDefault, sysUnmirrored, sysQSD),
		hotCase("fua_qd64", "", true, load.Workload{Block: 4096, Depth: 64, FUA: true}, sysDefault, sysUnmirrored, sysQSD),
		hotCase("write_and_flush_qd1", "", false, load.Workload{Block: 4096, Depth: 1, Flush: true}, sysDefault, sysUnmirrored, sysTgt, sysQSD),
	)
	return list
}

// hotCase compares the default case with other systems; the second one is the peer of its own row.
func hotCase(name, rows string, quick bool, w load.Workload, systems ...string) testCase {
	return testCase{name: name, rows: rows, quick: quick, uses: systems, run: func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		arms, err := b.arms(ctx, c.uses...)
		if err != nil {
			return nil, err
		}
		for i, a := range arms {
			if a.served.Name == sysPlain && strings.HasPrefix(c.rows, "mtls_to_plain") {
				arms[i].row = c.rows
			}
		}
		return b.compare(ctx, comparison{name: c.name, w: w, arms: arms})
	}}
}

// shapeCases are the same load over several LUNs, several sessions, the wrong path, and on blocks
// that were never written.
func shapeCases() (list []testCase) {
	for _, n := range []int{4, 16} {
		list = append(list, testCase{name: fmt.Sprintf("mirrored_write_4k_qd32_%d_luns", n), uses: []string{sysDefault}, run: severalLUNs(n, asIs)})
	}
	for _, n := range []int{2, 4} {
		list = append(list, testCase{name: fmt.Sprintf("mirrored_write_4k_qd32_%d_sessions", n), uses: []string{sysDefault}, run: severalSessions(n)})
	}
	for _, f := range []struct {
		name string
		w    load.Workload
	}{
		{"forwarded_read_qd1", load.Workload{Reads: 100, Block: 4096, Depth: 1}},
		{"forwarded_read_qd32", load.Workload{Reads: 100, Block: 4096, Depth: 32}},
		{"forwarded_write_qd32", load.Workload{Block: 4096, Depth: 32}},
	} {
		list = append(list, testCase{name: f.name, quick: f.name == "forwarded_read_qd32", uses: []string{sysDefault}, run: forwarded(f.w)})
	}
	return append(list, testCase{name: "first_write_4k_qd32", uses: []string{sysDefault, sysTgt}, run: firstWrite})
}

// serveMore opens further LUNs of the default pair, filled, and closes them with it.
func (b *bench) serveMore(ctx context.Context, name string, count int, size int64) (list []load.Device, err error) {
	p, err := b.pair(ctx, sysDefault)
	if err != nil {
		return nil, err
	}
	for i := range count {
		l, err := p.CreateLUN(ctx, fmt.Sprintf("%s-%d", name, i), size)
		if err != nil {
			return nil, err
		}
		d, err := l.Open(ctx, fmt.Sprintf("%s-%d", name, i), rig.Both)
		if err != nil {
			return nil, err
		}
		b.keepOpen(sysDefault, d)
		if err := load.Fill(ctx, d); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// asIs measures as the run does.
func asIs(_ *bench, c comparison) comparison { return c }

// severalLUNs deals the same depth to several LUNs, each with sessions of its own; the peer is one
// LUN. how is by how many measurements.
func severalLUNs(n int, how func(*bench, comparison) comparison) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		one, err := b.system(ctx, sysDefault)
		if err != nil {
			return nil, err
		}
		devices, err := b.serveMore(ctx, strings.ReplaceAll(c.name, "_", "-"), n, b.o.size/int64(n))
		if err != nil {
			return nil, err
		}
		many := *one
		many.Name = fmt.Sprintf("%d_luns", n)
		return b.compare(ctx, how(b, comparison{name: c.name, w: load.Workload{Block: 4096, Depth: 32}, arms: []arm{{served: &many, devices: devices}, {served: one}},
			note: fmt.Sprintf("32 requests in flight over all LUNs together, %d for each; the peer is one LUN", 32/n)}))
	}
}

// severalSessions deals the same depth to several hosts of one LUN; the peer is one of them.
func severalSessions(n int) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		l, one, err := b.oneSession(ctx, fmt.Sprintf("shared-by-%d", n))
		if err != nil {
			return nil, err
		}
		many := *one
		many.Name = fmt.Sprintf("%d_sessions", n)
		devices := []load.Device{one.Device}
		for i := 1; i < n; i++ {
			d, err := l.Open(ctx, fmt.Sprintf("host-%d-of-%d", i, n), rig.Both)
			if err != nil {
				return nil, err
			}
			b.keepOpen(sysDefault, d)
			devices = append(devices, d)
		}
		return b.compare(ctx, comparison{name: c.name, w: load.Workload{Block: 4096, Depth: 32}, arms: []arm{{served: &many, devices: devices}, {served: one}},
			note: "32 requests in flight over all hosts of one LUN together; the peer is one host"})
	}
}

// forwarded loads a LUN through the node that does not own it; the peer is its owner.
func forwarded(w load.Workload) func(context.Context, *bench, testCase) ([]results.Row, error) {
	return func(ctx context.Context, b *bench, c testCase) ([]results.Row, error) {
		wrong, right, err := b.bothWays(ctx, sysDefault)
		if err != nil {
			return nil, err
		}
		arms := []arm{{served: wrong}, {served: right}}
		if b.o.base != "" {
			base, _, err := b.bothWays(ctx, sysBase)
			if err != nil {
				return nil, err
			}
			arms = append(arms, arm{served: base, row: c.name + "_to_base"})
		}
		return b.compare(ctx, comparison{name: c.name, w: w, arms: arms,
			note: "through the node that does not own the LUN; the peer is the way through its owner"})
	}
}

// bothWays opens one filled LUN through the node that does not own it, and through the one that
// does, once.
func (b *bench) bothWays(ctx context.Context, system string) (wrong, right *rig.Served, err error) {
	if s := b.served[system+"/wrong"]; s != nil {
		return s, b.served[system+"/right"], nil
	}
	p, err := b.pair(ctx, system)
	if err != nil {
		return nil, nil, err
	}
	l, err := p.CreateLUN(ctx, "both-ways", b.o.size)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range []struct {
		name string
		via  rig.Via
		s    **rig.Served
	}{{"right", rig.OnlyA, &right}, {"wrong", rig.OnlyB, &wrong}} {
		if *x.s, err = l.Serve(ctx, x.name, x.via); err != nil {
			return nil, nil, err
		}
		b.keepOpen(system, (*x.s).Device)
		b.served[system+"/"+x.name] = *x.s
	}
	if right.Name, wrong.Name = "through_owner", "forwarded"; system != sysDefault {
		wrong.Name = system
	}
	return wrong, right, b.fill(ctx, right)
}

// firstWrite writes to LUNs that hold nothing yet: every write allocates.
func firstWrite(ctx context.Context, b *bench, c testCase) (rows []results.Row, err error) {
	const size = 8 << 30 // so large that few blocks are hit twice
	var arms []arm
	p, err := b.pair(ctx, sysDefault)
	if err != nil {
		return nil, err
	}
	l, err := p.CreateLUN(ctx, "first-write", size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Delete(ctx)) }() // what it has dirtied is no other case's
	s, err := l.Serve(ctx, sysDefault, rig.Both)
	if err != nil {
		return nil, err
	}
	defer rig.CloseDevice(s.Device)
	arms = append(arms, arm{served: s})
	if t, err := b.tgtLUN(ctx, size); errors.Is(err, errPeer) {
		b.skip(c.name+"_to_tgt", err)
	} else if err != nil {
		return nil, err
	} else {
		b.keepOpen(sysTgt, t.Device)
		arms = append(arms, arm{served: t})
	}
	return b.compare(ctx, comparison{name: c.name, w: load.Workload{Block: 4096, Depth: 32}, arms: arms,
		note: "thin LUNs of 8 GiB that nothing was written to: every write allocates, and the images fall into more and more extents"})
}
