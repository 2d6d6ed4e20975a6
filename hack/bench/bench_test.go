package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/results"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// command runs the benchmark as a person does.
func command(t *testing.T, bin string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	return string(out), err
}

// One case from beginning to end: systems are made, filled and measured, the row has what others
// rely on, and nothing is left.
func TestOneCase(t *testing.T) {
	if err := lab.CanMount(); err != nil {
		t.Skipf("no filesystems of our own here: %v", err)
	}
	dir := t.TempDir()
	bin, err := harness.Build(t.Context(), dir, "./hack/bench")
	if err != nil {
		t.Fatal(err)
	}
	work, file := filepath.Join(dir, "work"), filepath.Join(dir, "out", "bench.json")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, bin, "-quick", "-rounds", "2", "-time", "50ms", "-size", "67108864", "-only", "mirrored_write_4k_qd1", "-dir", work, "-out", file)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, err := results.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mirrored_write_4k_qd1", "mtls_to_plain_qd1", "mirrored_write_4k_qd1_to_hops", "mirrored_write_4k_qd1_to_hops_tls", "mirrored_write_4k_qd1_to_tmpfs"} {
		row, ok := r.Row(name)
		if !ok || row.Gemel <= 0 || row.Peer == nil || *row.Peer <= 0 || row.Ratio == nil || row.Control == nil || row.Gemels == nil || row.Peers == nil || row.Rounds != 2 ||
			row.Gemels.P50 <= 0 || row.Gemels.P999 < row.Gemels.P99 || row.Gemels.P99 < row.Gemels.P50 || len(row.GemelCPU) != 3 || row.Command == "" {
			t.Errorf("%s: %v %+v", name, ok, row)
		}
		if !strings.Contains(out, name) {
			t.Errorf("%s is not printed", name)
		}
	}
	left, err := os.ReadDir(work)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Every row that is published has a name that stays.
func TestRowsExist(t *testing.T) {
	var all []string
	for _, c := range cases() {
		all = append(append(all, c.name), strings.Fields(c.rows)...)
	}
	have := " " + strings.Join(all, " ") + " "
	for _, name := range []string{"mirrored_write_4k_qd1", "mirrored_write_4k_qd4", "mirrored_write_4k_qd16", "mirrored_write_4k_qd32", "mirrored_write_4k_qd128",
		"mtls_to_plain_qd1", "mtls_to_plain_qd32", "randread_4k_qd32_cold", "randread_64k_qd16_cold", "randread_4k_qd32_5ms", "forwarded_read_qd32", "partner_lost_qd64",
		"fua_qd64", "write_overload", "snapshot_pause_ms", "snapshot_minute_after_p99_ratio", "alua_honoured_to_round_robin",
		"group_read_4_luns_both_nodes", "group_70_30_16_luns_one_node", "group_write_1_lun", "group_70_30_16_luns_4_volumes", "group_read_cold_16_luns_4_volumes",
		"luns4_qd8_to_lun1_qd32", "cached_read_4k_qd1_to_base", "cached_read_4k_qd32_to_base"} {
		if !strings.Contains(have, " "+name+" ") {
			t.Errorf("no case makes the row %s", name)
		}
	}
}

func TestCasesAreSelectedByName(t *testing.T) {
	names := func(o options) (list []string) {
		for _, c := range o.selected() {
			list = append(list, c.name)
		}
		return list
	}
	if got := names(options{only: "mtls_to_plain_qd32"}); len(got) != 1 || got[0] != "mirrored_write_4k_qd32" {
		t.Errorf("a row's name selects %v", got)
	}
	if got := names(options{only: "cold"}); len(got) != 8 {
		t.Errorf("part of a name selects %v", got)
	}
	full, quick := names(options{}), names(options{quick: true})
	if len(quick) == 0 || len(quick) >= len(full) || strings.Contains(strings.Join(full, " "), "aged") {
		t.Errorf("%d cases, %d of them quick: %v", len(full), len(quick), full)
	}
	for want, change := range map[string]func(*options){
		"-rounds": func(o *options) { o.rounds = 1 }, "-time": func(o *options) { o.time = time.Millisecond }, "-size": func(o *options) { o.size = 1000 },
		"-age": func(o *options) { o.age = 0 }, "-only": func(o *options) { o.only = "nonsense" },
	} {
		o := options{age: time.Minute}
		o.setDefaults()
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A few in a hundred takes many measurements; a quick run and one of more rounds keep their own.
// Without a commit to compare with there is nothing to measure.
func TestCloseCases(t *testing.T) {
	for want, o := range map[int]options{oftenRounds: {rounds: 5}, oftenRounds + 20: {rounds: oftenRounds + 20}, 0: {rounds: 3, quick: true}} {
		if c := (&bench{o: o}).often(comparison{}); c.rounds != want {
			t.Errorf("%d rounds of %+v, want %d", c.rounds, o, want)
		}
	}
	for _, c := range closeCases() {
		if !c.asked {
			continue
		}
		if rows, err := c.run(t.Context(), &bench{}, c); !errors.Is(err, errPeer) || !strings.Contains(err.Error(), "-base") {
			t.Errorf("%s without -base: %v, %v", c.name, rows, err)
		}
	}
}

// In each two rounds the case follows its control as often as the other way round, and everything
// is measured once a round.
func TestCaseAndControlTakeTurns(t *testing.T) {
	for n := 2; n < 9; n++ {
		for round := 0; round < 10; round += 2 {
			there, back := order(round, n), order(round+1, n)
			place := func(list []int, i int) int { return slices.Index(list, i) }
			if len(there) != n || (place(there, 0) < place(there, 1)) == (place(back, 0) < place(back, 1)) {
				t.Errorf("rounds %d and %d of %d: %v, %v", round, round+1, n, there, back)
			}
			for i := range n {
				if place(there, i) < 0 || place(back, i) < 0 {
					t.Errorf("round %d: %d is missing in %v or %v", round, i, there, back)
				}
			}
		}
	}
}
