package database

import (
	"fmt"
	"path/filepath"
	"strings"
)

// judge implements database.
func (s *sqlite) judge(r *rig, before, after []uint64) (f findings) {
	if err := s.journals(&f); err != nil {
		f.broken = append(f.broken, err.Error())
	}
	if err := s.contents(r, before, after, &f); err != nil {
		f.broken = append(f.broken, err.Error())
	}
	return f
}

// journals counts what transactions at work have left beside the files.
func (s *sqlite) journals(f *findings) error {
	f.met = map[string]int{}
	for _, file := range []string{s.main, s.other} {
		hot, err := filepath.Glob(file + "-journal")
		if err != nil {
			return err
		}
		super, err := filepath.Glob(file + "-mj*")
		if err != nil {
			return err
		}
		f.met["hot_journals"] += len(hot)
		f.met["super_journals"] += len(super)
	}
	return nil
}

func (s *sqlite) contents(r *rig, before, after []uint64, f *findings) error {
	c, err := s.connect(r.ctx) // rolls back what was at work
	if err != nil {
		return err
	}
	defer func() { _ = c.end() }()
	for _, file := range []string{"main", "other"} {
		lines, err := c.do(fmt.Sprintf("PRAGMA %s.integrity_check;", file))
		if err != nil {
			return err
		}
		if strings.Join(lines, "\n") != "ok" {
			f.integrity = append(f.integrity, fmt.Sprintf("%s: %q", file, lines))
		}
	}
	row := func(query string) ([]int64, error) {
		lines, err := c.do(query)
		if err != nil {
			return nil, err
		}
		return numbers(strings.Join(lines, "\n"))
	}
	// Rows in one file only, and rows that differ, of the transactions through both.
	differ := 0
	for _, table := range []string{"both", "page"} {
		n, err := row(fmt.Sprintf(`SELECT (SELECT count(*) FROM (SELECT * FROM main.%[1]s EXCEPT SELECT * FROM other.%[1]s)) +
(SELECT count(*) FROM (SELECT * FROM other.%[1]s EXCEPT SELECT * FROM main.%[1]s));`, table))
		if err != nil {
			return err
		}
		differ += int(n[0])
	}
	if differ > 0 {
		f.order = append(f.order, fmt.Sprintf("a transaction is there in part: %d rows differ between the files", differ))
	}
	for i, of := range []struct{ name, table string }{{"transactions", "main.both"}, {"steps", "(SELECT k FROM main.step UNION ALL SELECT k FROM other.step)"}} {
		n, err := row(fmt.Sprintf("SELECT count(*), coalesce(max(k), 0) FROM %s;", of.table))
		if err != nil {
			return err
		}
		count, last := n[0], n[1]
		if count != last {
			f.order = append(f.order, fmt.Sprintf("%s: there are %d, and the last one is %d", of.name, count, last))
		}
		if last < int64(before[i]) {
			f.lost = append(f.lost, fmt.Sprintf("%s: the last one is %d, and %d was acknowledged", of.name, last, before[i]))
		}
		if last > int64(after[i]) {
			f.order = append(f.order, fmt.Sprintf("%s: the last one is %d, and %d was the last to begin", of.name, last, after[i]))
		}
	}
	return c.end()
}
