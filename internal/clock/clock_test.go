package clock

import "testing"

func TestBoottimeDoesNotGoBack(t *testing.T) {
	last := Boottime()
	if last <= 0 {
		t.Fatal(last)
	}
	for range 1000 {
		now := Boottime()
		if now < last {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
}

func TestBoottimeIsTheKernels(t *testing.T) {
	for range 1000 {
		before := system()
		now := Boottime()
		if after := system(); now < before-3*apart || now > after {
			t.Fatalf("%d ns after %d, and %d before %d", now-before, before, after-now, after)
		}
	}
}

func TestWallOffsetStandsStill(t *testing.T) {
	first, ok := WallOffset()
	for range 1000 {
		now, known := WallOffset()
		if known && !ok {
			first, ok = now, true
		}
		if d := now - first; known && (d > 2*wallWithin || d < -2*wallWithin) {
			t.Fatalf("the wall clock moved by %d ns against the other", d)
		}
	}
	if !ok {
		t.Skip("interrupted at every look: this machine is too busy to tell")
	}
	if now := Boottime() + first; now < 1e18 {
		t.Fatalf("%d ns is no time of this century", now)
	}
}
