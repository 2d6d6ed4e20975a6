package register

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// What is left out changes no verdict.
func TestSimplifyChangesNoVerdict(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	verdicts, dropped := map[porcupine.CheckResult]int{}, 0
	for range 30000 {
		var ops h
		for range 3 + rng.IntN(6) {
			start := rng.Int64N(20)
			end := start + 1 + rng.Int64N(8)
			v := uint64(1 + rng.IntN(5))
			switch rng.IntN(6) {
			case 0:
				ops = ops.write(1, v, start, end)
			case 1, 2:
				ops = ops.maybe(2, v, start, end)
			case 3:
				ops = ops.read(3, uint64(rng.IntN(6)), start, end)
			case 4:
				ops = ops.swap(4, uint64(rng.IntN(6)), v, uint64(rng.IntN(2)), start, end)
			default:
				ops = ops.maybeSwap(5, uint64(rng.IntN(6)), v, start, end)
			}
		}
		whole := porcupine.CheckOperationsTimeout(modelFrom(0), ops, time.Minute)
		if a := Check(0, ops); (a == nil) != (whole == porcupine.Ok) {
			t.Fatalf("%+v:\n%s", a, list(0, ops))
		}
		less := simplify(0, ops)
		dropped += len(ops) - len(less)
		if got := porcupine.CheckOperationsTimeout(modelFrom(0), less, time.Minute); got != whole {
			t.Fatalf("%v, and %v of what is left:\n%s\n%s", whole, got, list(0, ops), list(0, less))
		}
		verdicts[whole]++
	}
	if verdicts[porcupine.Ok] < 1000 || verdicts[porcupine.Illegal] < 1000 || dropped < 10000 {
		t.Fatalf("%v, %d operations left out", verdicts, dropped)
	}
}

// Hosts that try again and again while nothing answers leave many attempts, all open at once.
func TestManyAttempts(t *testing.T) {
	var unseen, seen h
	for i := range int64(200) {
		unseen = unseen.maybe(int(i), uint64(100+i), i, 1000)
	}
	for i := range int64(3) {
		seen = seen.write(int(i), uint64(10+i), 900, 1000)
		for j := range int64(8) {
			seen = seen.maybe(int(i), uint64(10+i), 900+j, 1000).maybeSwap(int(i), 10, uint64(20+i), 900+j, 1000)
		}
		seen = seen.swap(int(i), 10, uint64(20+i), 0, 990, 1000).read(5, uint64(10+i), 995, 1000)
	}
	for name, c := range map[string]struct {
		ops h
		ok  bool
	}{
		"unseen":           {unseen.read(2, 150, 1003, 1004), true},
		"unseen, and loss": {unseen.write(1, 7, 1001, 1002).read(2, 7, 1003, 1004).read(2, 0, 1005, 1006), false},
		"seen":             {seen.read(2, 12, 1003, 1004), true},
	} {
		if a := Check(0, c.ops); (a == nil) != c.ok || a != nil && a.Unknown {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
