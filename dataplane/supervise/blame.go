package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// Blame names the LUN whose command a process was executing when it crashed. What both nodes know
// of blames keeps a command that crashes each process that executes it from ending one after the
// other (docs/decisions/0086-a-lun-that-ends-processes.md).
type Blame struct {
	LUN   string        `json:"lun"`   // uuid
	Node  string        `json:"node"`  // of the process
	Nonce uint64        `json:"nonce"` // of the process
	Ago   time.Duration `json:"ago"`   // age at the time of the report: clocks differ
}

const (
	maxBlames = 16
	maxNote   = 4 << 10 // bytes of a line
	// BlameFor is how long a blame is remembered. It counts for a minute only; more would be told
	// after an administrator has looked into it.
	BlameFor = 2 * time.Minute
)

// note is one line of JSON from a process to its supervisor. One field is set.
type note struct {
	Blame   string `json:"blame,omitempty"`   // the process crashes, executing a command of this LUN
	Heard   *Blame `json:"heard,omitempty"`   // from the other node's supervisor
	Forgive string `json:"forgive,omitempty"` // an administrator lets this LUN execute commands again
}

// Blame tells the supervisor that this process is about to crash, and of which LUN a command is
// being executed; once.
func (l *Life) Blame(lun string) {
	if l != nil && l.notes != nil && !l.blamed.Swap(true) {
		l.tell(note{Blame: lun})
	}
}

// Heard passes on what the other node's supervisor has told: the next process of this node knows it
// from its start.
func (l *Life) Heard(b Blame) { l.tell(note{Heard: &b}) }

// Forgive has the supervisor forget the blames of a LUN.
func (l *Life) Forgive(lun string) { l.tell(note{Forgive: lun}) }

// tell writes to the supervisor, which reads all the time; if it does not, the line is lost: no
// command waits for it.
func (l *Life) tell(n note) {
	if l == nil || l.notes == nil {
		return
	}
	raw, err := json.Marshal(n)
	if err != nil {
		panic(err) // plain data
	}
	_, _ = l.notes.Write(append(raw, '\n'))
}

// blames are those that a supervisor knows.
type blames struct {
	mu   sync.Mutex
	list []blame
}

type blame struct {
	Blame
	at time.Time
}

// add takes a blame that is not known yet. The oldest gives way.
func (b *blames) add(x Blame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.list, func(o blame) bool { return o.LUN == x.LUN && o.Nonce == x.Nonce }) {
		return
	}
	b.list = append(b.list, blame{x, time.Now().Add(-x.Ago)})
	if n := len(b.list) - maxBlames; n > 0 {
		b.list = slices.Delete(b.list, 0, n)
	}
}

func (b *blames) forgive(lun string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.DeleteFunc(b.list, func(o blame) bool { return o.LUN == lun })
}

// now are the blames that are remembered, with their ages.
func (b *blames) now() (out []Blame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.DeleteFunc(b.list, func(o blame) bool { return time.Since(o.at) > BlameFor })
	for _, o := range b.list {
		o.Ago = time.Since(o.at)
		out = append(out, o.Blame)
	}
	return out
}

// listen takes the notes of one process until it ends.
func (b *blames) listen(r io.Reader, node string, nonce uint64, log *slog.Logger) {
	in := bufio.NewReaderSize(r, maxNote)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				log.Warn("the notes of the node's process cannot be read", "err", err)
				_, _ = io.Copy(io.Discard, r) // it must not wait for a reader
			}
			return
		}
		var n note
		if err := json.Unmarshal(line, &n); err != nil {
			log.Warn("a note of the node's process cannot be decoded", "err", err)
			continue
		}
		switch {
		case n.Blame != "":
			log.Error("the node's process crashes while it executes a command of a LUN", "lun", n.Blame)
			b.add(Blame{LUN: n.Blame, Node: node, Nonce: nonce})
		case n.Heard != nil:
			b.add(*n.Heard)
		case n.Forgive != "":
			b.forgive(n.Forgive)
		}
	}
}
