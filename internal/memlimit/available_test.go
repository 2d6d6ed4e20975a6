package memlimit

import (
	"math"
	"os"
	"testing"
	"testing/fstest"
)

func TestAvailable(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:       16384 kB\nMemAvailable:    1024 kB\n": 1 << 20,
		"MemAvailable: 0 kB":                     0,
		"MemTotal: 16384 kB\n":                   math.MaxInt64,
		"MemAvailable: many kB\n":                math.MaxInt64,
		"MemAvailable: -1 kB\n":                  math.MaxInt64,
		"MemAvailable: 1024 MB\n":                math.MaxInt64,
		"MemAvailable: 9223372036854775807 kB\n": math.MaxInt64,
	} {
		if got := Available(fstest.MapFS{"proc/meminfo": {Data: []byte(text)}}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := Available(fstest.MapFS{}); got != math.MaxInt64 {
		t.Errorf("without the file: %d", got)
	}
	if got := Available(os.DirFS("/")); got <= 0 || got == math.MaxInt64 {
		t.Errorf("of this machine: %d", got)
	}
}
