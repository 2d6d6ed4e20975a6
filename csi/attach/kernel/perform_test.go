package kernel

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A map has the number of one that was there before, and udev has events of that one left: a link
// that is there now is none to rely on.
func TestAwaitMapWaitsForUdev(t *testing.T) {
	l := openFixture(t, "two-volumes")
	m := mapOfFixture(t, l)
	link, queue := l.path("/dev/disk/by-id", "dm-uuid-"+uuidPrefix+m.id.wwid()), l.path("/run/udev/queue")
	for _, f := range []string{link, queue} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- l.do(t.Context(), step{do: doAwaitMap, id: m.id, paths: len(m.slaves)}) }()
	select {
	case err := <-done:
		t.Fatal("did not wait:", err)
	case <-time.After(300 * time.Millisecond):
	}
	begin := time.Now()
	if err := os.Remove(queue); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || time.Since(begin) > pathLimit/2 {
		t.Fatal(err, time.Since(begin))
	}
}
