package node

import (
	"log/slog"
	"testing"
)

func TestInitiatorName(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	first, err := InitiatorName(dir, "Worker_1.Example", "m1", log)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckIQN(first); err != nil {
		t.Fatal(err)
	}
	if again, err := InitiatorName(dir, "renamed", "m1", log); err != nil || again != first {
		t.Fatalf("%q, %v: the name changed", again, err)
	}
	if copied, err := InitiatorName(dir, "Worker_1.Example", "m2", log); err != nil || copied == first {
		t.Fatalf("%q, %v: a copy of the machine has its name", copied, err)
	}
	for _, bad := range []string{"", "worker", "iqn.", "IQN.2026-11.a:b", "iqn.2026-11.a:b c", "iqn.2026-11.a:ü"} {
		if CheckIQN(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
