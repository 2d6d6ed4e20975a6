package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/supervise"
)

// A command that crashes the process that executes it is repeated by its host at the next owner,
// and would end one process after the other, with all the LUNs of the pair. So a LUN whose commands
// have ended two processes within a minute is quarantined: no command of a host is executed any
// more, until an administrator ends that (docs/decisions/0086-a-lun-that-ends-processes.md).
//
// A process that crashes names the LUN to its supervisor, which tells the next process and the
// partner. A node that knows of two refuses the LUN at once, and proposes that both nodes do.

// blameWindow is the time within which two crashes count.
const blameWindow = time.Minute

// quarantines is what this node knows of LUNs whose commands ended processes.
type quarantines struct {
	mu       sync.Mutex
	blames   []blamed
	luns     map[string]string // by uuid: why it is refused here, recorded or not
	forgiven map[string]int64  // by uuid: when its quarantine was ended
	news     chan struct{}     // luns may have one that is not recorded
}

type blamed struct {
	supervise.Blame
	at int64 // by this node's clock
}

func newQuarantines() quarantines {
	return quarantines{luns: map[string]string{}, forgiven: map[string]int64{}, news: make(chan struct{}, 1)}
}

// learn takes blames. It returns those that were not known, and the LUNs that are to be refused
// from now on.
func (q *quarantines) learn(now int64, list []supervise.Blame) (fresh []supervise.Blame, refuse []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.blames = slices.DeleteFunc(q.blames, func(b blamed) bool { return now-b.at > int64(supervise.BlameFor) })
	for _, b := range list {
		x := blamed{b, now - int64(b.Ago)}
		if when, ok := q.forgiven[b.LUN]; ok && x.at <= when {
			continue
		}
		if slices.ContainsFunc(q.blames, func(o blamed) bool { return o.LUN == b.LUN && o.Nonce == b.Nonce }) {
			continue
		}
		fresh = append(fresh, b)
		for _, o := range q.blames {
			if _, known := q.luns[b.LUN]; !known && o.LUN == b.LUN && max(o.at-x.at, x.at-o.at) <= int64(blameWindow) {
				first, second := o, x
				if x.at < o.at {
					first, second = x, o
				}
				q.luns[b.LUN] = fmt.Sprintf("a command of this LUN ended the process of node %s, and within %v that of node %s", first.Node,
					time.Duration(second.at-first.at).Round(time.Second), second.Node)
				refuse = append(refuse, b.LUN)
			}
		}
		q.blames = append(q.blames, x)
	}
	if len(refuse) > 0 {
		select {
		case q.news <- struct{}{}:
		default:
		}
	}
	return fresh, refuse
}

// forgive forgets what is known of a LUN.
func (q *quarantines) forgive(now int64, uuid string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.luns, uuid)
	q.forgiven[uuid] = now
	q.blames = slices.DeleteFunc(q.blames, func(b blamed) bool { return b.LUN == uuid })
}

func (q *quarantines) refused(uuid string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.luns[uuid]
	return ok
}

// blamed takes what a supervisor knows: this node's own, or that of the other one.
func (n *Node) blamed(list []supervise.Blame, own bool) {
	fresh, refuse := n.quarantines.learn(n.boottime(), list)
	if !own {
		for _, b := range fresh {
			n.cfg.Life.Heard(b)
		}
	}
	for _, uuid := range refuse {
		n.log.Error("commands of a LUN end the processes that execute them: none of its commands is executed any more", "lun", uuid)
		n.event("quarantine", "LUN "+uuid+" is quarantined: its commands ended two processes within a minute")
		if e := n.entryOf(uuid); e != nil {
			e.both(func(u *scsi.Unit) { u.Quarantine(true) })
		}
	}
}

// recordEvery is how often it is tried to put a quarantine into the log.
const recordEvery = time.Second

// recordQuarantines puts into the log what this node refuses, so that both nodes do, and restarts
// do not end it.
func (n *Node) recordQuarantines() {
	last := ""
	for {
		select {
		case <-n.quarantines.news:
		case <-n.run.ctx.Done():
			return
		}
		for {
			open, err := n.recordOpen()
			if !open {
				break
			}
			if err != nil && err.Error() != last {
				last = err.Error()
				n.log.Warn("the quarantine of a LUN is not in the log yet; trying again", "err", err)
			}
			select {
			case <-time.After(recordEvery):
			case <-n.run.ctx.Done():
				return
			}
		}
	}
}

// recordOpen tries it once. open: there is more to record.
func (n *Node) recordOpen() (open bool, err error) {
	n.quarantines.mu.Lock()
	why := maps.Clone(n.quarantines.luns)
	n.quarantines.mu.Unlock()
	n.md.mu.Lock()
	for id := range why {
		if l := n.md.state.LUNs[id]; l == nil || l.Quarantine != "" {
			delete(why, id)
		}
	}
	n.md.mu.Unlock()
	for id, text := range why {
		if err = n.bothKnow(errNoQuarantine); err != nil {
			break
		}
		ctx, cancel := context.WithTimeout(n.run.ctx, callTime)
		_, err = n.propose(ctx, &meta.Entry{Modify: &meta.Modify{UUID: id, Quarantine: text}})
		cancel()
	}
	return len(why) > 0, err
}

var errNoQuarantine = fmt.Errorf("quarantine: the other node is of a release that knows none: upgrade it: %w", control.ErrUnsupported)

// quarantineEnds follows the entry that ends a quarantine. The caller holds md.mu, before the
// tables follow.
func (n *Node) quarantineEnds(e *meta.Entry) {
	if m := e.Modify; m != nil && m.Quarantine == meta.NoQuarantine {
		n.quarantines.forgive(n.boottime(), m.UUID)
		n.cfg.Life.Forgive(m.UUID)
	}
}

// quarantined reports whether commands of a LUN are refused here.
func (n *Node) quarantined(l *meta.LUN) bool {
	return l.Quarantine != "" || n.quarantines.refused(l.UUID)
}

// blame is deferred around the execution of a command. If the execution panics, blame tells the
// supervisor which LUN the command is for, and the panic goes on.
func (n *Node) blame(sound *bool, id pair.LUNID) {
	if *sound || n.cfg.Life == nil {
		return
	}
	if e := n.md.tables.Load().units[id]; e != nil {
		n.cfg.Life.Blame(e.lun.UUID)
	}
}
