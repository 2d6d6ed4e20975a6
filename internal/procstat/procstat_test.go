package procstat

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The name may hold blanks and parentheses.
func TestParse(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	if s, err := Parse("12 (a) b) c" + ")" + tail); err != nil || s != (Stat{Name: "a) b) c", State: "S", User: 11, System: 12, Start: 4711}) {
		t.Fatal(s, err)
	}
	for _, s := range []string{"", "1 (x", "1 (x) S 1 2", "1 (x)" + strings.Replace(tail, "4711", "x", 1)} {
		if _, err := Parse(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("12 (a b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21")
	f.Add("1 (x")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := Parse(s); err == nil && !strings.Contains(s, strconv.FormatUint(p.Start, 10)) {
			t.Fatalf("%d out of %q", p.Start, s)
		}
	})
}

func TestRead(t *testing.T) {
	s, err := Read(os.Getpid())
	if err != nil || s.Start == 0 || s.State == "Z" || !strings.HasPrefix("procstat.test", s.Name) {
		t.Fatalf("%+v %v", s, err)
	}
	if _, err := Read(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}
