package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/sums"
)

// counters that belong to the runtime; the rest is read from where it is kept.
type counters struct {
	arbiterErrors atomic.Uint64
}

// collector reads everything at scrape time: nothing on the command path knows of Prometheus.
type collector struct{ n *Node }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gemel_"+name, help, labels, nil)
}

var (
	descPhase      = desc("pair_phase", "1 for the phase of this node.", "phase")
	descEpoch      = desc("pair_epoch", "Epoch of the record that this node acts on.")
	descLinked     = desc("pair_linked", "1 while the link to the peer is up.")
	descLog        = desc("pair_log_index", "Index of the last metadata log entry that this node applied.")
	descLease      = desc("pair_lease_seconds", "Seconds until the lease expires; negative after it has expired.")
	descExposed    = desc("pair_exposed", "1 while this node serves alone and has not flushed everything.")
	descResync     = desc("pair_resync_bytes", "Bytes of the current or last resync.", "kind")
	descHot        = desc("pair_dirty_bytes", "Bytes in regions whose write-intent bit is set on this node: what a resync would compare.")
	descScrub      = desc("pair_scrub_bytes", "Bytes of the current or last scrub of this node's LUNs.", "kind")
	descScrubSkip  = desc("scrub_skipped_bytes", "Bytes that the current or last scrub of this node's LUNs skipped, by reason.", "reason")
	descScrubOn    = desc("scrub_active", "1 while this node compares its share of a scrub.")
	descScrubEnd   = desc("scrub_last_finished_timestamp_seconds", "When the last scrub of everything finished this node's share; absent before the first one.")
	descScrubDiff  = desc("scrub_mismatched_ranges_total", "Ranges of 1 MiB of this node's LUNs in which the other node's copy differed, since the process started.")
	descScrubHeal  = desc("scrub_repaired_ranges_total", "Differing ranges that were written again on the other node.")
	descSumBlocks  = desc("checksum_blocks_total", "Blocks of 4 KiB that did not match their checksum when they were read (mismatched, once for each read), were written again from the other node (healed), or were accepted as found because no checksum existed (settled).", "event")
	descSumLost    = desc("checksum_lost_total", "Runs of damaged blocks that a host, a scrub or a copy read and of which no node had a good copy.")
	descSumBytes   = desc("checksum_covered_bytes", "Bytes of LUNs and snapshots (total), of those that have checksums (covered), and of those whose checksums are not trusted since the node started (doubted).", "kind")
	descSumCache   = desc("checksum_cache_bytes", "Memory that holds checksums: used, of that not written to disk yet (dirty), and the limit.", "kind")
	descSumLooks   = desc("checksum_cache_lookups_total", "Lookups in the memory that holds checksums.", "result")
	descSumSectors = desc("checksum_lost_sectors_total", "Damaged sectors found in checksum files: each holds the checksums of 126 blocks, which are lost.")
	descLost       = desc("luns_lost_writes", "LUNs that answer MEDIUM ERROR to a host until they are published again.")
	descQuarantine = desc("luns_quarantined", "LUNs whose commands are not executed, because they ended two processes within a minute.")
	descReachable  = desc("arbiter_reachable", "1 when the arbiter answered the last probe.")
	descEvents     = desc("pair_events_total", "Events of the pair protocol since the process started.", "event")
	descArbiter    = desc("arbiter_errors_total", "Arbiter calls whose outcome is unknown.")
	descCapacity   = desc("store_capacity_bytes", "Size of this node's backing volume.", "volume")
	descFree       = desc("store_free_bytes", "Free bytes of this node's backing volume.", "volume")
	descMemberCap  = desc("member_capacity_bytes", "Size of a member of this node's backing volume.", "volume", "member")
	descMemberFree = desc("member_free_bytes", "Free bytes of a member of this node's backing volume.", "volume", "member")
	descMemberRead = desc("member_read_seconds", "Time of a read from the disk of a member, as measured once a minute: the median of the last five looks.", "volume", "member")
	descMemberLeft = desc("member_draining_extents", "Extents of 4 MiB that a member that is drained still has.", "volume", "member")
	descUnflushed  = desc("store_unflushed_bytes", "Bytes in the page cache that are not yet written to a backing volume; writes wait at the limit.", "volume")
	descUnflushedL = desc("store_unflushed_limit_bytes", "Most unflushed bytes of a backing volume: what its disk was measured to write in a quarter of a second.", "volume")
	descWriteRate  = desc("store_written_out_bytes_per_second", "Bytes per second that a backing volume's disk writes under pressure; 0 before it was measured.", "volume")
	descWriteWaits = desc("store_write_waits_total", "Writes that waited because too much was unflushed.", "volume")
	descWindow     = desc("pair_write_window_bytes", "Window of a backing volume: bytes of writes that may be in progress on both nodes; it adapts to their latency.", "volume")
	descWindowUsed = desc("pair_write_window_used_bytes", "Bytes of writes to a backing volume that are in progress.", "volume")
	descPaced      = desc("pair_writes_waiting", "Writes to a backing volume that wait for room in the window.", "volume")
	descMetadata   = desc("metadata_bytes", "Bytes of the pair's metadata (used), and the limit; a request that would exceed the limit is refused.", "kind")
	descMoves      = desc("ownership_moves_total", "LUNs that this node has moved as the one that decides, by reason.", "reason")
	descAway       = desc("ownership_luns_away", "LUNs that are not at home; 0 at the node that does not decide.")
	descUse        = desc("ownership_use_ratio", "How much of its CPUs a node uses, averaged over five minutes, with the work of each LUN counted at its owner; only at the node that decides.", "node")
	descDiskUse    = desc("ownership_disk_use_ratio", "For which part of the time the disk under a backing volume of a node is busy, averaged over five minutes, with the reads of each LUN counted at its owner; only at the node that decides, and where both nodes know it.", "node", "volume")
	descDrained    = desc("ownership_drained", "1 while a drain of the node stands.", "node")
	descLUNs       = desc("luns", "LUNs by owner.", "owner")
	descSessions   = desc("iscsi_sessions", "Initiator sessions on this node.")
	descISCSI      = desc("iscsi_events_total", "Counters of the iSCSI front end.", "event")
	descISCSIMem   = desc("iscsi_memory_bytes", "Bytes that the commands of all sessions hold (used), and the limit.", "kind")
	descLinkEvict  = desc("link_evicted_total", "Connections to the link that were closed before they were authenticated, to make room for newer ones.")
	descTickSecond = desc("pair_tick_age_seconds", "Seconds since the protocol loop last ran.")
)

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l...)
	}
	count := func(d *prometheus.Desc, v uint64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), l...)
	}
	n.mu.Lock()
	v, st := n.m.View(n.boottime()), n.m.Stats
	windows := make([]pair.PaceView, len(n.store.Volumes()))
	for i := range windows {
		windows[i] = n.m.Pace(uint8(i))
	}
	n.mu.Unlock()
	now := n.boottime()
	for p := pair.Starting; p <= pair.Fenced; p++ {
		gauge(descPhase, flag(v.Phase == p), p.String())
	}
	gauge(descEpoch, float64(v.Record.Epoch))
	gauge(descLinked, flag(v.Linked))
	gauge(descLog, float64(v.LogIndex))
	gauge(descLease, time.Duration(v.LeaseUntil-now).Seconds())
	gauge(descExposed, flag(v.Exposed))
	gauge(descResync, float64(v.Resync.Total), "total")
	gauge(descResync, float64(v.Resync.Done), "done")
	gauge(descResync, float64(v.Resync.Sent), "sent")
	gauge(descHot, float64(n.hotRegions())*store.RegionSize)
	gauge(descScrub, float64(v.Scrub.Total), "total")
	gauge(descScrub, float64(v.Scrub.Done), "done")
	for _, why := range pair.Skips() {
		gauge(descScrubSkip, float64(v.Scrub.Skips[why].Bytes), why.String())
	}
	gauge(descScrubOn, flag(v.Scrub.Active))
	if at, ok := n.lastFullScrub(); ok {
		gauge(descScrubEnd, float64(at.UnixMilli())/1e3)
	}
	count(descScrubDiff, st.ScrubMismatches)
	count(descScrubHeal, st.ScrubRepaired)
	if !n.cfg.NoChecksums {
		done, total, doubted := n.adopted()
		gauge(descSumBytes, float64(total), "total")
		gauge(descSumBytes, float64(done), "covered")
		gauge(descSumBytes, float64(doubted), "doubted")
		sc, cs := n.store.SumsCounts(), n.store.SumsStats()
		count(descSumBlocks, sc.Mismatched, "mismatched")
		count(descSumBlocks, sc.Healed, "healed")
		count(descSumBlocks, sc.Settled, "settled")
		count(descSumLost, st.LostBlocks)
		gauge(descSumCache, float64(cs.Pages*sums.PageMemory), "used")
		gauge(descSumCache, float64(cs.Dirty*sums.PageMemory), "dirty")
		gauge(descSumCache, float64(cs.Limit*sums.PageMemory), "limit")
		count(descSumLooks, cs.Hits, "hit")
		count(descSumLooks, cs.Misses, "miss")
		count(descSumSectors, cs.LostSectors)
	}
	if p := n.seen.probed.Load(); p != nil {
		gauge(descReachable, flag(p.err == nil))
	}
	gauge(descTickSecond, time.Duration(now-n.run.lastTick.Load()).Seconds())
	for name, x := range map[string]uint64{"exclude": st.Excludes, "readmit": st.Readmits, "handshake": st.Relinks,
		"fence": st.Fences, "forward": st.Forwarded, "mirror": st.Mirrored, "repair": st.Repaired, "aged": st.Aged,
		"path_switch": st.PathSwitches, "session_proof": st.Overwritten, "held": st.Held, "ownership_change": st.Transfers, "no_space": st.NoSpace,
		"lease_lapse": st.LeaseLapses, "stale_message": st.StaleMessages, "intent_write": st.Intents, "cold_write": st.ColdWrites,
		"checkpoint": st.Checkpoints, "region_cleared": st.Cleared, "resync_partial": st.PartialResyncs, "resync_full": st.FullResyncs,
		"resync_resumed": st.Resumes, "data_lost": st.Lost, "forced": st.Forced, "rolled_back": st.RolledBack,
		"write_paced": st.Paced, "clock_step": st.ClockSteps,
		"exclude_testified": st.Testified, "step_down_slow": st.SlowLeaves, "exclude_slow": st.SlowExcludes, "both_late": st.BothLate, "scrub_mismatch": st.ScrubMismatches, "scrub_repaired": st.ScrubRepaired} {
		count(descEvents, x, name)
	}
	count(descArbiter, n.seen.metrics.arbiterErrors.Load())
	cp, _ := n.capacity() // of those that can be asked
	for name, v := range cp.Volumes {
		gauge(descCapacity, float64(v.Total), name)
		gauge(descFree, float64(v.Free), name)
	}
	for _, p := range n.places() {
		gauge(descMemberCap, float64(p.CapacityBytes), p.Volume, p.Member)
		gauge(descMemberFree, float64(p.FreeBytes), p.Volume, p.Member)
		if p.ReadUs > 0 {
			gauge(descMemberRead, float64(p.ReadUs)/1e6, p.Volume, p.Member)
		}
		if p.Draining {
			gauge(descMemberLeft, float64(p.ExtentsLeft), p.Volume, p.Member)
		}
	}
	for i, vol := range n.store.Volumes() {
		u, name := vol.Unflushed(), vol.Name()
		gauge(descUnflushed, float64(u.Bytes), name)
		gauge(descUnflushedL, float64(u.Limit), name)
		gauge(descWriteRate, u.Rate, name)
		count(descWriteWaits, u.Waits, name)
		gauge(descWindow, float64(windows[i].Window), name)
		gauge(descWindowUsed, float64(windows[i].Used), name)
		gauge(descPaced, float64(windows[i].Waiting), name)
	}
	gauge(descMetadata, float64(n.md.bytes.Load()), "used")
	gauge(descMetadata, maxMetadata, "limit")
	n.md.mu.Lock()
	owned := map[string]int{"a": n.md.state.Owned("a"), "b": n.md.state.Owned("b")}
	lost, quarantined := n.md.state.Lost(), 0
	for _, l := range n.md.state.LUNs {
		if n.quarantined(l) {
			quarantined++
		}
	}
	n.md.mu.Unlock()
	for o, k := range owned {
		gauge(descLUNs, float64(k), o)
	}
	gauge(descLost, float64(lost))
	gauge(descQuarantine, float64(quarantined))
	drained := map[string]float64{"a": 0, "b": 0}
	if d := n.drained(); d != nil {
		drained[d.Node] = 1
	}
	for name, stands := range drained {
		gauge(descDrained, stands, name)
	}
	n.chair.collect(count, gauge)
	n.collectSupervisors(count, gauge)
	n.seen.warm.collect(count)
	gauge(descSessions, float64(len(n.iscsi.Sessions())))
	used, limit := n.iscsi.Memory()
	gauge(descISCSIMem, float64(used), "used")
	gauge(descISCSIMem, float64(limit), "limit")
	n.collectLUNs(ch)
	n.collectTiers(ch)
	n.collectCopies(ch)
	n.collectGroups(ch)
	if n.peer.link != nil {
		count(descLinkEvict, n.peer.link.Evicted())
	}
	is := n.iscsi.Stats()
	for name, x := range map[string]*atomic.Int64{"connection": &is.Accepted, "login_refused": &is.Refused, "login_forbidden": &is.Forbidden,
		"login_not_yet": &is.NotYet, "connection_evicted": &is.Evicted,
		"memory_wait": &is.MemoryWaits, "task_set_full": &is.TaskSetFull, "stalled": &is.Stalled,
		"login": &is.Logins, "login_failed": &is.LoginsFailed, "command": &is.Commands, "read_bytes": &is.ReadBytes,
		"write_bytes": &is.WriteBytes, "task_management": &is.TaskManagement, "protocol_error": &is.ProtocolErrors,
		"digest_error": &is.DigestErrors, "dropped": &is.Dropped, "writev": &is.Batches} {
		count(descISCSI, uint64(x.Load()), name)
	}
}

// live: the protocol loop runs and this life is not over, whatever peer and arbiter do. A node that
// leaves ends its process; the probe is for one that cannot, because the disk holds it. One that is
// fenced before a lost record is live: an administrator needs the process. ready: this node is a
// recorded member and serves.
func (n *Node) live() error {
	if v := n.View(); finished(&v) && !n.run.stopping.Load() {
		return fmt.Errorf("this node has left the pair and its process is ending: %s", v.Reason)
	}
	if age := time.Duration(n.boottime() - n.run.lastTick.Load()); age > 10*time.Second {
		return fmt.Errorf("the protocol loop has not run for %v", age.Round(time.Millisecond))
	}
	return nil
}

func (n *Node) ready() error {
	v := n.View()
	if n.run.stopping.Load() {
		return errors.New("stopping")
	}
	if v.Serving {
		return nil
	}
	return fmt.Errorf("%s: %s", standing(n.phase(v)), v.Reason)
}

// contentionFraction is of how many waits for a lock one is in the profile of locks.
const contentionFraction = 20

// serveProfiles adds the profiles of Go's runtime, of waits for locks too.
func serveProfiles(mux *http.ServeMux) {
	runtime.SetMutexProfileFraction(contentionFraction)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

// serveMetrics serves /metrics, /healthz, /readyz, and profiles if they are wanted, until stop is
// called.
func (n *Node) serveMetrics(l net.Listener) (stop func()) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{n}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c, ok := n.arb.(prometheus.Collector); ok {
		reg.MustRegister(c)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	probe := func(path string, f func() error) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if err := f(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		})
	}
	probe("/healthz", n.live)
	probe("/readyz", n.ready)
	if n.cfg.Profiling {
		serveProfiles(mux)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	n.run.tasks.Go(taskServe, func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			n.log.Error("the metrics endpoint stopped serving", "err", err)
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}
}
