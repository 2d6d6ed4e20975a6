package chaos

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// Damage of every kind is kept from hosts, and healed: one episode of each.
func TestDamageIsHealed(t *testing.T) {
	rep, err := play(t, Config{Seed: 11, Episodes: 3, Kinds: damage})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Faults) != len(damage) || rep.DamagedBlocks < 10 || rep.HealedBlocks == 0 || rep.WrongBytes != 0 {
		t.Errorf("that was no trial: %+v", rep)
	}
	t.Logf("%d blocks damaged %v, %d healed, %d read errors judged", rep.DamagedBlocks, rep.DamageWays, rep.HealedBlocks, rep.ReadErrors)
}

// The same damage reaches hosts of nodes that keep no checksums, and is found.
func TestDamageIsNoticed(t *testing.T) {
	rep, err := play(t, Config{Seed: 11, Episodes: 2, Kinds: damage, NoChecksums: true})
	if !errors.Is(err, errVerdict) || rep.WrongBytes == 0 || rep.DamagedBlocks == 0 || rep.HealedBlocks != 0 || rep.Passed {
		t.Fatalf("%d blocks were damaged, %d wrong reads: %v", rep.DamagedBlocks, rep.WrongBytes, err)
	}
}

// A read error counts as judged for a damaged block, at a time when there was no other copy, and
// for nothing else.
func TestReadErrorsOfWounds(t *testing.T) {
	r := newRecorder()
	w := &r.wounds
	w.size = sumBlock / 512
	w.forget()
	w.add(key{1, 3})
	medium := error(&initiator.SCSIError{Status: initiator.StatusCheckCondition, Sense: initiator.Sense{Key: initiator.KeyMediumError}})
	if r.hurt(key{1, 25}, medium, r.now()) {
		t.Error("the other copy is good")
	}
	w.open(r.now())
	for k, want := range map[key]bool{{1, 24}: true, {1, 31}: true, {1, 32}: false, {1, 23}: false, {0, 25}: false} {
		if r.hurt(k, medium, r.now()) != want {
			t.Errorf("%v: want %v", k, want)
		}
	}
	if r.hurt(key{1, 25}, initiator.ErrTimeout, r.now()) {
		t.Error("another error")
	}
	w.close(r.now())
	if !r.hurt(key{1, 25}, medium, 0) || r.hurt(key{1, 25}, medium, r.now()) {
		t.Error("what began before it was restored counts, and nothing later")
	}
	if len(w.list()) != 1 || w.judged.Load() != 3 {
		t.Error(w.list(), w.judged.Load())
	}
	if w.forget(); w.list() != nil || r.hurt(key{1, 25}, medium, 0) {
		t.Error("not forgotten")
	}
}

// What was written to another block, and what is torn, are wrong reads; an older value of the block
// is left to the history.
func TestWrongReads(t *testing.T) {
	r := newRecorder()
	k, other := key{0, 8}, key{2, 8}
	r.record(k, 1, r.value(k), nil, 0, 1)
	r.record(k, 1, 0, nil, 0, 1)
	if _, wrong, _ := r.found(); wrong != 0 {
		t.Fatal(r.wrong)
	}
	r.record(k, 1, r.value(other), nil, 0, 1)
	r.record(k, 1, 0, register.ErrTorn, 0, 1)
	if _, wrong, errs := r.found(); wrong != 2 || len(errs) != 0 || len(r.ops[k]) != 2 {
		t.Fatal(wrong, errs, r.ops[k])
	}
}

// Blocks are damaged once, through a descriptor of its own, and only those count that have changed.
func TestOverwriteCountsChangedBlocksOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.img")
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, 4*sumBlock), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{rec: newRecorder(), rot: newRot(false), luns: []string{"x"}}
	r.rot.hit = map[spot]bool{}
	r.rec.wounds.forget()
	r.rec.wounds.open(0)
	run := append(bytes.Repeat([]byte{1}, sumBlock), bytes.Repeat([]byte{2}, sumBlock)...)
	for range 2 {
		if err := r.overwrite(spot{path, sumBlock}, run, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.overwrite(spot{path, 0}, make([]byte, sumBlock), true); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || b[0] != 0 || b[sumBlock] != 1 || b[2*sumBlock] != 2 || b[3*sumBlock] != 1 || len(b) != 4*sumBlock {
		t.Fatal(err, b[0], b[sumBlock], b[2*sumBlock], b[3*sumBlock])
	}
	if list := r.rec.wounds.list(); r.rot.blocks != 2 || len(list) != 2 || list[0] != (key{0, 0}) || list[1] != (key{0, 2}) {
		t.Fatal(r.rot.blocks, list)
	}
}
