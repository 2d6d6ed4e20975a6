package story

import (
	"bytes"
	"strings"
	"testing"
)

func TestPipeGetsPlainText(t *testing.T) {
	var b bytes.Buffer
	s := To(&b, 12)
	s.Title("Title")
	s.Step("What happens", strings.Repeat("a reason ", 30))
	stop := s.Live(func() string { return "never shown: it ends at once" })
	stop()
	stop()
	s.Fact("%d things", 3)
	s.Problem("wrong:\nvery")
	s.Table([][]string{{"name", "value"}, {"longer name", "1"}})
	out := b.String()
	if strings.ContainsAny(out, "\x1b\r") {
		t.Errorf("control characters in a pipe: %q", out)
	}
	for _, want := range []string{"[ 1/12] What happens", "- 3 things", "! wrong:\n", "  name         value\n    longer name  1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	for _, l := range strings.Split(out, "\n") {
		if len(l) > 100 {
			t.Errorf("line of %d: %q", len(l), l)
		}
	}
}

func TestBarAndUnits(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		want        string
	}{{0, 0, "  0 %"}, {1, 2, " 50 %"}, {9, 3, "100 %"}, {-1, 5, "  0 %"}} {
		if b := Bar(c.done, c.total); !strings.HasSuffix(b, c.want) || len(b) != 24+8 {
			t.Errorf("%d of %d: %q", c.done, c.total, b)
		}
	}
	if Bytes(3<<29) != "1.5 GiB" || Bytes(512) != "512 B" {
		t.Error(Bytes(3<<29), Bytes(512))
	}
}
