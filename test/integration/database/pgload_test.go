package database

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	writers  = 4
	accounts = 20000 // several times the shared buffers
)

// schema: each transaction of a writer adds an entry, counts it in the tally and moves money from
// an account to another one. seen is how many transactions of each writer were acknowledged when
// this one began: where this one is, all of those are.
const schema = `
CREATE EXTENSION amcheck;
CREATE TABLE entry (writer int, k bigint, seen bigint[], mark text, pad text, PRIMARY KEY (writer, k));
CREATE INDEX entry_mark ON entry (mark);
CREATE TABLE tally (writer int PRIMARY KEY, k bigint);
CREATE TABLE account (id int PRIMARY KEY, balance bigint, pad text);
CREATE INDEX account_balance ON account (balance);
`

// writer is one sequence of transactions, each of which begins after the one before it was
// acknowledged. A writer with several connections uses them in turn.
type writer struct {
	id           int
	connections  []*session
	began, acked atomic.Uint64
}

// postgres is the database PostgreSQL with its load.
type postgres struct {
	*server
	writers []*writer
	stop    atomic.Bool
	wg      sync.WaitGroup
	mu      sync.Mutex
	errs    []error
}

func (p *postgres) begin(r *rig) error {
	if err := p.make(r); err != nil {
		return err
	}
	s, err := p.connect(r.ctx)
	if err != nil {
		return err
	}
	_, err = s.do(schema + fmt.Sprintf("INSERT INTO account SELECT id, 1000, repeat('.', 150) FROM generate_series(0, %d) id;\n", accounts-1) +
		fmt.Sprintf("INSERT INTO tally SELECT writer, 0 FROM generate_series(0, %d) writer;", writers-1))
	if err := errors.Join(err, s.end()); err != nil {
		return err
	}
	for i := range writers {
		w := &writer{id: i}
		p.writers = append(p.writers, w)
		n := 1
		if i == 0 {
			n = 2 // a chain through two connections
		}
		for range n {
			s, err := p.connect(r.ctx)
			if err != nil {
				return err
			}
			w.connections = append(w.connections, s)
		}
	}
	for _, w := range p.writers {
		p.wg.Go(func() { p.note(p.write(w)) })
	}
	p.wg.Go(func() { p.note(p.checkpoints(r.ctx)) })
	return nil
}

func (p *postgres) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *postgres) write(w *writer) error {
	rnd := rand.New(rand.NewPCG(*seed, uint64(w.id)))
	for k := uint64(1); !p.stop.Load(); k++ {
		var seen []string
		for _, n := range p.acked() {
			seen = append(seen, fmt.Sprint(n))
		}
		from, to := rnd.IntN(accounts), rnd.IntN(accounts)
		low, high, amount := min(from, to), max(from, to), rnd.IntN(100)-50 // in one order: writers do not wait for each other
		w.began.Store(k)
		_, err := w.connections[k%uint64(len(w.connections))].do(fmt.Sprintf(`BEGIN;
INSERT INTO entry VALUES (%d, %d, '{%s}', '%x', repeat('.', %d));
UPDATE tally SET k = k + 1 WHERE writer = %d;
UPDATE account SET balance = balance - %d WHERE id = %d;
UPDATE account SET balance = balance + %d WHERE id = %d;
COMMIT;`, w.id, k, strings.Join(seen, ","), rnd.Uint64(), 20+rnd.IntN(500), w.id, amount, low, amount, high))
		if err != nil {
			return fmt.Errorf("writer %d, transaction %d: %w", w.id, k, err)
		}
		w.acked.Store(k)
	}
	return nil
}

// checkpoints asks for checkpoints all the time, with moments without one in between.
func (p *postgres) checkpoints(ctx context.Context) error {
	s, err := p.connect(ctx)
	if err != nil {
		return err
	}
	for !p.stop.Load() {
		if _, err := s.do("CHECKPOINT;"); err != nil {
			return err
		}
		from := sum(p.acked())
		_ = until(ctx, time.Second, "more is written", func() bool { return p.stop.Load() || sum(p.acked()) >= from+between/3 })
	}
	return s.end()
}

func (p *postgres) acked() (list []uint64) {
	for _, w := range p.writers {
		list = append(list, w.acked.Load())
	}
	return list
}

func (p *postgres) asked() (list []uint64) {
	for _, w := range p.writers {
		list = append(list, w.began.Load())
	}
	return list
}

func (p *postgres) end(r *rig) error {
	p.stop.Store(true)
	p.wg.Wait()
	for _, w := range p.writers {
		for _, s := range w.connections {
			p.note(s.end())
		}
	}
	return errors.Join(append(p.errs, p.server.stop(r))...)
}

// weaken implements database. Each server process reads the setting before its next statement.
func (p *postgres) weaken(r *rig) error {
	s, err := p.connect(r.ctx)
	if err != nil {
		return err
	}
	_, err = s.do("ALTER SYSTEM SET fsync = off;\nSELECT pg_reload_conf();")
	return errors.Join(err, s.end())
}

func (p *postgres) abort() {
	p.stop.Store(true)
	p.wg.Wait() // the clients at work have ended with their context
	for _, w := range p.writers {
		for _, s := range w.connections {
			_ = s.end()
		}
	}
	p.kill()
}
