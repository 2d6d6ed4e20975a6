package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// entryWork is the entry of the log that this node is at work on: the machine has one at a time,
// and begins with ActShow when ActAppend has ended.
type entryWork struct {
	index   uint64
	entry   *meta.Entry
	joining bool        // this node is being copied to
	next    *meta.State // durable, in place of the one that is shown; nil: all the work is left for show
	out     meta.Outcome
	res     scsi.Result
	fx      meta.Effect
}

// append makes an entry durable: the state, then the files, then bbolt. A crash between the steps
// is harmless: this node comes back as a joiner, whose metadata is replaced and whose files are
// compared; the lone member repeats what reconcileFiles finds missing. joining: this node is being
// copied to, so what it copies from an object of its own must be copied to in turn.
//
// Nothing of it is seen before show. An entry that makes or ends copies, or removes something, is
// left for show: the peer has it then.
func (n *Node) append(index uint64, raw []byte, joining bool) {
	e, err := meta.DecodeEntry(raw)
	if errors.Is(err, meta.ErrNewer) && !n.cfg.later {
		// Without that, this node would hold other metadata than its peer, without an error.
		n.log.Error("a log entry comes from a newer release; stepping down", "index", index, "err", err)
		n.do(func(m *pair.Machine, now int64) {
			m.StepDown(now, fmt.Sprintf("this node cannot apply entry %d of the metadata log: %v: upgrade node %s", index, err, n.self))
		})
		return
	}
	if err != nil {
		n.log.Error("a log entry cannot be decoded", "index", index, "err", err)
		e = &meta.Entry{} // applies as "invalid" on both nodes alike
	}
	w := &entryWork{index: index, entry: e, joining: joining}
	moved := n.moving()
	n.md.mu.Lock()
	var failure error
	if n.md.state.Early(e) {
		w.next = n.md.state.Draft()
		failure = n.carryOutEntry(w, w.next, moved)
	} else {
		moved()
	}
	n.md.work = w
	n.md.mu.Unlock()
	if failure != nil {
		n.metadataFailed(w, failure)
		return
	}
	n.do(func(m *pair.Machine, now int64) { m.Appended(now, index) })
}

// carryOutEntry applies an entry to a state, and makes that durable. The caller holds md.mu, and
// has reported progress since before it waited for md.mu, which another one may hold while files
// are copied; moved ends that.
func (n *Node) carryOutEntry(w *entryWork, s *meta.State, moved func()) error {
	w.out, w.fx = s.Apply(w.index, w.entry)
	n.noteGivenUp(w.entry)
	w.res = scsi.OK
	if s != w.next || !createsLUN(&w.fx) {
		n.entryFiles(w, s)
		moved() // what comes now takes no time as long as the disk answers
		return n.persist(s, &w.fx)
	}
	// The file of a LUN that is being made may come after the entry: reconcileFiles makes it.
	moved()
	var wg sync.WaitGroup
	wg.Go(func() { n.entryFiles(w, s) })
	err := n.persist(s, &w.fx)
	wg.Wait()
	return err
}

// filesOfLUNs is for how many LUNs of a batch files are made at the same time.
const filesOfLUNs = 8

// entryFiles makes the files of an entry. A part of a batch whose files cannot be made has its own
// outcome; the result tells the proposer, wherever that happened, to ask for each part alone.
func (n *Node) entryFiles(w *entryWork, s *meta.State) {
	if w.fx.Parts == nil {
		if err := n.applyFiles(s, &w.fx, w.joining); err != nil {
			w.out, w.res = fileOutcome(err)
		}
		return
	}
	errs := make([]error, len(w.fx.Parts))
	var wg sync.WaitGroup
	slots := make(chan struct{}, filesOfLUNs)
	for i, fx := range w.fx.Parts {
		if l := fx.CreatedLUN; l != nil && l.Born == s.Index {
			slots <- struct{}{}
			wg.Go(func() {
				errs[i] = n.applyFiles(s, fx, w.joining)
				<-slots
				// A slow disk may need longer than Dm for all of them, and a disk that hangs ends
				// none. md.mu is held, for which what else the machine decides may wait.
				n.run.tasks.Go(taskLog, func() { n.do(func(m *pair.Machine, now int64) { m.AppendMoves(now) }) })
			})
		}
	}
	wg.Wait()
	for i, fx := range w.fx.Parts {
		if l := fx.CreatedLUN; l == nil || l.Born != s.Index { // it may withdraw a LUN from the tables: one at a time
			errs[i] = n.applyFiles(s, fx, w.joining)
		}
		if errs[i] != nil {
			w.out.Parts[i], _ = fileOutcome(errs[i])
			w.res = scsi.Failed
		}
	}
}

func createsLUN(fx *meta.Effect) bool {
	return slices.ContainsFunc(fx.Each(), func(part *meta.Effect) bool { return part.CreatedLUN != nil })
}

// metadataFailed is as bad as a failed disk (R9, R12): the metadata cannot be kept.
func (n *Node) metadataFailed(w *entryWork, err error) {
	n.log.Error("metadata", "index", w.index, "err", err)
	n.do(func(m *pair.Machine, now int64) { m.StoreFailed(now, "metadata: "+err.Error()) })
}

// show lets hosts and callers see an entry: the tables, then what hosts are told, and commands that
// it ends.
func (n *Node) show() {
	moved := n.moving()
	n.md.mu.Lock()
	w := n.md.work
	n.md.work = nil
	var err error
	if w.next != nil {
		n.md.state = w.next
		moved()
	} else {
		err = n.carryOutEntry(w, n.md.state, moved)
	}
	n.quarantineEnds(w.entry)
	fx := &w.fx
	dropped, misfits := err == nil && n.dropMisfits(fx.RemovedLUN, fx.RemovedSnapshot), n.misfitText()
	if err == nil && (fx.UnitsChanged || fx.MapsChanged || createsLUN(fx) || len(fx.LUNs)+len(fx.Snapshots)+len(fx.Hosts) > 0) {
		err = n.publishEntry(fx)
	}
	var units []pair.UnitInfo
	if fx.UnitsChanged {
		units = n.unitInfos()
	}
	n.md.mu.Unlock()
	if err != nil {
		n.metadataFailed(w, err)
		return
	}
	moved = n.moving()
	n.removeFiles(fx)
	if dropped {
		n.do(func(m *pair.Machine, now int64) { m.Misfits(now, misfits) })
	}
	for _, part := range fx.Each() {
		n.tellHosts(part)
	}
	n.waitEnds(fx, func() {
		moved()
		b, err := json.Marshal(w.out)
		if err != nil {
			panic(err) // plain data
		}
		n.do(func(m *pair.Machine, now int64) { m.Shown(now, w.index, w.res, b, units) })
		for _, x := range fx.Marked {
			n.runCopy(x.UUID, x.Born)
		}
		n.copyEnds(w.entry)
		for _, text := range entryTexts(w.entry, &w.out) {
			n.event("log", text)
		}
	})
}
