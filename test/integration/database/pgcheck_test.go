package database

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// PostgreSQL with its data on one LUN and its log on another one, of two pairs and owners.
func TestPostgreSQL(t *testing.T) {
	if *cuts == 0 {
		t.Skip("skipped: takes minutes; `make test-databases` runs it")
	}
	s := newServer(t)
	r := newRig(t, 10*time.Minute+time.Duration(*cuts+*controls)*time.Minute)
	prove(t, "postgresql", r, &postgres{server: s})
}

// complaint is what a healthy server never prints.
var complaint = regexp.MustCompile(`.*(PANIC|FATAL|ERROR|WARNING|invalid page|could not|corrupt).*`)

// judge implements database. The server has recovered from a crash, or the test has shown nothing.
func (p *postgres) judge(r *rig, before, after []uint64) (f findings) {
	defer p.kill()
	if err := p.start(r); err != nil {
		f.broken = append(f.broken, err.Error())
		return f
	}
	if !strings.Contains(p.said(), "automatic recovery in progress") {
		f.broken = append(f.broken, "PostgreSQL did not recover from a crash:\n"+p.said())
	}
	if err := p.contents(r, before, after, &f); err != nil {
		f.broken = append(f.broken, err.Error())
	}
	if said, err := p.run(r.ctx, "pg_amcheck", "-h", p.dir, "-d", "postgres", "--heapallindexed", "--parent-check"); err != nil {
		f.amcheck = append(f.amcheck, err.Error())
	} else if said != "" {
		f.amcheck = append(f.amcheck, said)
	}
	if err := p.server.stop(r); err != nil {
		f.broken = append(f.broken, err.Error())
		return f // pg_checksums needs one that was stopped
	}
	for l := range strings.SplitSeq(p.said(), "\n") {
		if complaint.MatchString(l) {
			f.broken = append(f.broken, l)
		}
	}
	if _, err := p.run(r.ctx, "pg_checksums", "--check", "-D", p.data); err != nil {
		f.checksums = append(f.checksums, err.Error())
	}
	return f
}

// contents compares what is there with what was acknowledged. Indexes are left out: whether they
// agree with the tables is for pg_amcheck.
func (p *postgres) contents(r *rig, before, after []uint64, f *findings) error {
	s, err := p.connect(r.ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.end() }()
	lines, err := s.do(`SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;
SELECT t.writer, count(e.k), coalesce(max(e.k), 0), t.k FROM tally t LEFT JOIN entry e USING (writer) GROUP BY t.writer, t.k ORDER BY 1;`)
	if err != nil {
		return err
	}
	if len(lines) != writers {
		return fmt.Errorf("the tally has %d rows: %q", len(lines), lines)
	}
	var has []int64
	for i, l := range lines {
		n, err := numbers(l)
		if err != nil || len(n) != 4 || n[0] != int64(i) {
			return fmt.Errorf("row %d of the tally: %q", i, l)
		}
		count, last, tally := n[1], n[2], n[3]
		has = append(has, last)
		if count != last || tally != last {
			f.order = append(f.order, fmt.Sprintf("writer %d: %d entries, the last one is %d, and the tally says %d", i, count, last, tally))
		}
		if last < int64(before[i]) {
			f.lost = append(f.lost, fmt.Sprintf("writer %d: the last entry is %d, and %d was acknowledged", i, last, before[i]))
		}
		if last > int64(after[i]) {
			f.order = append(f.order, fmt.Sprintf("writer %d: the last entry is %d, and %d was the last to begin", i, last, after[i]))
		}
	}
	for i := range writers {
		lines, err := s.do(fmt.Sprintf("SELECT coalesce(max(seen[%d]), 0) FROM entry;", i+1))
		if err != nil {
			return err
		}
		n, err := numbers(strings.Join(lines, "|"))
		if err != nil || len(n) != 1 {
			return fmt.Errorf("what was seen of writer %d: %q", i, lines)
		}
		if n[0] > has[i] {
			f.order = append(f.order, fmt.Sprintf("writer %d: the last entry is %d, and a transaction is there that began after %d was acknowledged", i, has[i], n[0]))
		}
	}
	lines, err = s.do("SELECT count(*), sum(balance) FROM account;")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d|%d", accounts, accounts*1000); strings.Join(lines, "\n") != want {
		f.order = append(f.order, fmt.Sprintf("a transfer is there in part: %q accounts and money in place of %s", lines, want))
	}
	return s.end()
}

// numbers are the columns of a row.
func numbers(row string) (out []int64, err error) {
	for c := range strings.SplitSeq(row, "|") {
		n, err := strconv.ParseInt(c, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}
