package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// Sizes and numbers.
const (
	lunCount      = 3
	clientCount   = 3 // hosts with devices, each with workersEach
	workersEach   = 2
	swapperCount  = 2 // hosts that use COMPARE AND WRITE
	diskSize      = 768 << 20
	tinyLUNSize   = 4 << 30 // more than a disk has
	opTimeout     = 8 * time.Second
	keepSnapshots = 6
	hostIQN       = "iqn.2026-11.storage.gemel.chaos:"
	arbiterFolder = "arbiter"
)

// rig is the pair under test with all that is around it.
type rig struct {
	w     io.Writer
	lab   *lab.Lab
	net   *network
	pair  *harness.Pair
	rec   *recorder
	disks [2]string // where the nodes' filesystems are
	slow  [2]*slowdisk.Disk
	luns  []string // uuids
	keys  []key
	size  []int64 // of the LUNs, bytes; they grow

	snaps []string // uuids of the snapshots that are kept, oldest first

	hosts    []*client
	swappers []*swapper
	watchers []*swapper // one on each path
	tiny     *disk
	bulk     *disk             // for floods
	crowded  *targetv1.Mapping // of the same LUN, for crowds
	seldomID string
	seldom   *disk // for what is written while a disk gives errors, and never again
	fenced   []*targetv1.Mapping

	rot        *rot
	memory     confinement
	wrote      int64  // pieces of the LUN that is seldom written
	replacedAt [2]int // how many lives of a node had ended when it was given its disk

	mu   sync.Mutex
	held *os.File // the arbiter's lock file, locked
}

// build makes everything up to two nodes in sync.
func build(ctx context.Context, cfg Config) (r *rig, err error) {
	w := cfg.Out
	r = &rig{w: w, rec: newRecorder(), rot: newRot(cfg.NoChecksums)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.lab, _, err = lab.New(""); err != nil {
		return r, err
	}
	bin, err := place(r.lab, cfg.Binary)
	if err != nil {
		return r, err
	}
	if r.net, err = newNetwork(); err != nil {
		return r, err
	}
	var why error
	if r.memory, why = confine(); why != nil {
		fmt.Fprintf(w, "the nodes have no memory cgroups, and GOMEMLIMIT in place of them: %v\n", why)
	}
	o := harness.Options{Dir: r.lab.Path("pair"), Binary: bin, Supervised: true, Supervisors: true, Args: []string{"--fail-back-delay", failBackDelay}}
	if cfg.NoChecksums {
		o.Args = append(o.Args, "--no-checksums")
	}
	if err := os.MkdirAll(r.lab.Path(arbiterFolder), 0o700); err != nil {
		return r, err
	}
	var flags [2][]string
	n := &harness.Network{Link: linkIP[0] + ":3262", Supervisor: [2]string{linkIP[0] + ":3263", linkIP[1] + ":3263"}}
	if flags, n.Credentials, err = harness.PKI(r.lab.Path("pki")); err != nil {
		return r, err
	}
	for i, name := range harness.Names {
		if r.slow[i], err = slowdisk.Start(ctx, slowdisk.Options{Dir: r.lab.Path("disk-" + name), Size: diskSize}); err != nil {
			return r, err
		}
		r.disks[i] = r.slow[i].Mount
		o.State[i] = filepath.Join(r.disks[i], "state")
		o.PerNode[i], o.Wrap[i] = flags[i], r.memory.wrap(i)
		if cfg.Members {
			o.PerNode[i] = append(o.PerNode[i], memberFlags(r.disks[i])...)
		}
		if err := r.arbiter(i, true); err != nil {
			return r, err
		}
		o.Arbiter[i] = filepath.Join(r.arbiterPath(i), "record.json")
		n.ISCSI[i], n.Control[i], n.Metrics[i] = hostIP[i]+":3260", mgmtIP[i]+":3261", mgmtIP[i]+":9100"
		n.Enter[i] = r.net.spaces[i].Enter
	}
	o.Net = n
	if r.pair, err = harness.New(o); err != nil {
		return r, err
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := r.pair.Start(start); err != nil {
		return r, err
	}
	return r, r.prepare(ctx)
}

// place puts the target into the lab: it knows its processes by the folder of their executable.
func place(l *lab.Lab, binary string) (string, error) {
	b, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	to := l.Path("bin", "gemel-target")
	return to, os.WriteFile(to, b, 0o700)
}

// arbiterPath is the folder in which a node finds the record: a symbolic link, so that it can be
// taken away.
func (r *rig) arbiterPath(i int) string { return r.lab.Path("arbiter-" + harness.Names[i]) }

// arbiter lets a node reach the record or not: a link to itself gives ELOOP on everything below, an
// error that says nothing of the record, as a server that does not answer.
func (r *rig) arbiter(i int, reachable bool) error {
	to := r.arbiterPath(i)
	if reachable {
		to = r.lab.Path(arbiterFolder)
	}
	tmp := r.arbiterPath(i) + ".new"
	if err := os.Symlink(to, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, r.arbiterPath(i))
}

// holdArbiter takes the lock that writers of the record take, or gives it back.
func (r *rig) holdArbiter(hold bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !hold {
		var err error
		if r.held != nil {
			err = r.held.Close()
			r.held = nil
		}
		return err
	}
	if r.held != nil {
		return nil
	}
	f, err := os.OpenFile(r.lab.Path(arbiterFolder, "record.json.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return errors.Join(err, f.Close())
	}
	r.held = f
	return nil
}

// api calls the control API on any node that answers.
func (r *rig) api(ctx context.Context, f func(context.Context, targetv1.TargetServiceClient) error) error {
	var errs []error
	for i := range harness.Names {
		c, cancel := context.WithTimeout(ctx, opTimeout)
		err := f(c, r.pair.Client(i))
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("node %s: %w", harness.Names[i], err))
	}
	return errors.Join(errs...)
}

func (r *rig) createLUN(ctx context.Context, q *targetv1.CreateLUNRequest) error {
	return r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
		_, err := c.CreateLUN(ctx, q)
		return err
	})
}

func (r *rig) mapHost(ctx context.Context, lun, host string) (m *targetv1.Mapping, err error) {
	err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) (err error) {
		m, err = c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: lun, HostIqn: hostIQN + host})
		return err
	})
	return m, err
}

// mapAll maps every LUN under test to a host.
func (r *rig) mapAll(ctx context.Context, host string) (maps []*targetv1.Mapping, err error) {
	for _, id := range r.luns {
		m, err := r.mapHost(ctx, id, host)
		if err != nil {
			return nil, err
		}
		maps = append(maps, m)
	}
	return maps, nil
}

// prepare makes LUNs and opens them from every host.
func (r *rig) prepare(ctx context.Context) error {
	for i := range lunCount {
		id := uuid.NewString()
		err := r.createLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: fmt.Sprintf("lun-%d", i), SizeBytes: lunSize, PreferredNode: harness.Names[i%2]})
		if err != nil {
			return err
		}
		r.luns, r.size = append(r.luns, id), append(r.size, lunSize)
	}
	for c := range clientCount {
		h := &client{id: c, r: r.rec}
		r.hosts = append(r.hosts, h)
		maps, err := r.mapAll(ctx, fmt.Sprintf("host-%d", c))
		if err != nil {
			return err
		}
		for i, m := range maps {
			d, err := openDisk(ctx, i, m)
			if err != nil {
				return err
			}
			h.disks = append(h.disks, d)
		}
	}
	size := r.hosts[0].disks[0].BlockSize()
	r.rec.wounds.size = max(sumBlock/int64(size), 1)
	for c := range swapperCount {
		maps, err := r.mapAll(ctx, fmt.Sprintf("swapper-%d", c))
		if err != nil {
			return err
		}
		r.swappers = append(r.swappers, newSwapper(clientCount+c, r.rec, maps, size))
	}
	for i, n := range harness.Names {
		maps, err := r.mapAll(ctx, "watcher-"+n)
		if err != nil {
			return err
		}
		r.watchers = append(r.watchers, newWatcher(clientCount+swapperCount+i, r.rec, maps, size, i))
	}
	for _, d := range r.hosts[0].disks {
		for _, b := range d.blocks {
			r.keys = append(r.keys, key{d.lun, b})
		}
	}
	var err error
	bulk := uuid.NewString()
	if r.bulk, err = r.extra(ctx, bulk, "bulk", floodLUN, "flooder", lunCount+1); err != nil {
		return err
	}
	if r.crowded, err = r.mapHost(ctx, bulk, "crowd"); err != nil {
		return err
	}
	id := uuid.NewString()
	if err := r.createLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "fenced", SizeBytes: fencedLUN}); err != nil {
		return err
	}
	for h := range fencers {
		m, err := r.mapHost(ctx, id, fmt.Sprintf("fencer-%d", h))
		if err != nil {
			return err
		}
		r.fenced = append(r.fenced, m)
	}
	r.seldomID = uuid.NewString()
	if r.seldom, err = r.extra(ctx, r.seldomID, "seldom", seldomLUN, "archivist", lunCount+3); err != nil {
		return err
	}
	if err := r.fillSeldom(); err != nil {
		return err
	}
	r.tiny, err = r.extra(ctx, uuid.NewString(), "tiny", tinyLUNSize, "filler", lunCount)
	return err
}

// extra makes a LUN whose content is not judged.
func (r *rig) extra(ctx context.Context, id, name string, size uint64, host string, number int) (*disk, error) {
	if err := r.createLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: name, SizeBytes: size}); err != nil {
		return nil, err
	}
	m, err := r.mapHost(ctx, id, host)
	if err != nil {
		return nil, err
	}
	return openDisk(ctx, number, m)
}

// run starts all workers; they end with ctx.
func (r *rig) run(ctx context.Context, seed uint64, wg *sync.WaitGroup) {
	n := uint64(0)
	start := func(one func(*rand.Rand)) {
		n++
		rng := rand.New(rand.NewPCG(seed, n))
		wg.Go(func() { work(ctx, r.rec, rng, one) })
	}
	served := func(one func(*rand.Rand, *progress)) { // the hosts that have to be served again after each episode
		p := r.rec.worker()
		start(func(rng *rand.Rand) { one(rng, p) })
	}
	for _, h := range r.hosts {
		for range workersEach {
			served(h.one)
		}
	}
	for _, s := range r.swappers {
		served(s.one)
	}
	for _, s := range r.watchers {
		start(s.watch)
	}
}

// cut judges what there is since the last cut.
func (r *rig) cut() (int, error) {
	return r.rec.cut(r.keys, func(k key) (uint64, error) { return r.hosts[0].disks[k.lun].read(k.block) })
}

// disconnect closes the devices, and with that ends what waits for an answer. hangUp closes the
// sessions of the other hosts, whose workers must have ended.
func (r *rig) disconnect() error {
	var errs []error
	for _, h := range r.hosts {
		for _, d := range h.disks {
			errs = append(errs, d.close())
		}
	}
	for _, d := range []*disk{r.tiny, r.bulk, r.seldom} {
		if d != nil {
			errs = append(errs, d.close())
		}
	}
	return errors.Join(errs...)
}

func (r *rig) hangUp() {
	for _, s := range append(slices.Clone(r.swappers), r.watchers...) {
		s.close()
	}
}

// close undoes everything, whatever state it is in.
func (r *rig) close() error {
	var errs []error
	if r.pair != nil {
		var wg sync.WaitGroup
		for i := range harness.Names {
			wg.Go(func() { _ = r.pair.Kill(i) })
		}
		wg.Wait()
		_ = r.disconnect() // no node answers any more: only that the goroutines end matters
		r.hangUp()
		errs = append(errs, r.pair.Close())
	}
	if r.net != nil {
		r.net.close()
	}
	errs = append(errs, r.memory.close())
	for _, d := range r.slow {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	if r.lab != nil {
		errs = append(errs, r.holdArbiter(false), r.lab.Close())
	}
	return errors.Join(errs...)
}
