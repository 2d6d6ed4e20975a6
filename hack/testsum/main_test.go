package main

import (
	"bytes"
	"strings"
	"testing"
)

func run(t *testing.T, in string) (string, bool) {
	t.Helper()
	var out bytes.Buffer
	s := &summary{out: &out, output: map[key][]string{}, failedTests: map[string]bool{}}
	if err := s.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	ok := s.report()
	return out.String(), ok
}

func TestCountsOfAPassingRun(t *testing.T) {
	out, ok := run(t, `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: skipped: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p"}`)
	if !ok || !strings.HasSuffix(out, "\n1 passed, 0 failed, 1 skipped\n") || !strings.Contains(out, "needs root") {
		t.Fatalf("%v\n%s", ok, out)
	}
}

func TestPackagesThatTakeLong(t *testing.T) {
	out, ok := run(t, `{"Action":"pass","Package":"short","Test":"TestA"}
{"Action":"pass","Package":"short","Elapsed":59}
{"Action":"pass","Package":"long","Elapsed":61}
{"Action":"pass","Package":"longer","Elapsed":533.2}`)
	if !ok || !strings.Contains(out, "\nlongest:\n   533.2s longer\n    61.0s long\n\n1 passed") {
		t.Fatalf("%v\n%s", ok, out)
	}
}

func TestFailureShowsItsOutput(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"the reason\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`)
	if ok || !strings.Contains(out, "the reason") || !strings.Contains(out, "0 passed, 1 failed, 0 skipped") {
		t.Fatalf("%v\n%s", ok, out)
	}
}

func TestShownOutput(t *testing.T) {
	var out bytes.Buffer
	s := &summary{out: &out, output: map[key][]string{}, failedTests: map[string]bool{}, show: "/nothing,/tables"}
	in := `{"Action":"output","Package":"x/tables","Test":"TestA","Output":"=== RUN TestA\n"}
{"Action":"output","Package":"x/tables","Test":"TestA","Output":"family 3 0 1\n"}
{"Action":"pass","Package":"x/tables","Test":"TestA"}
{"Action":"output","Package":"x/other","Test":"TestB","Output":"noise\n"}
{"Action":"pass","Package":"x/other","Test":"TestB"}`
	if err := s.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "TestA | family 3 0 1\n" {
		t.Fatalf("%q", got)
	}
}

func TestBrokenPackageCounts(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"p","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}`)
	if ok || !strings.Contains(out, "panic: no") || !strings.Contains(out, "1 failed") {
		t.Fatalf("%v\n%s", ok, out)
	}
}

func TestNothingRanIsAFailure(t *testing.T) {
	if out, ok := run(t, ""); ok {
		t.Fatalf("nothing ran and it passed:\n%s", out)
	}
}

// What CI keeps may be the end only: it names the reason.
func TestEndNamesTheReason(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: it is 5, not 4\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"        a long log\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`)
	if ok || !strings.HasSuffix(out, "failed:\n  p TestA\n      a_test.go:3: it is 5, not 4\n\n0 passed, 1 failed, 0 skipped\n") {
		t.Fatalf("%v\n%s", ok, out)
	}
	many := reasons([]string{"  a_test.go:1: a", "  a_test.go:2: b", "  a_test.go:3: c", "  a_test.go:4: d", "  a_test.go:5: e", "  a_test.go:6: f", "  a_test.go:7: g"})
	if got := strings.Join(many, ""); got != "  a_test.go:1: a  a_test.go:2: b  a_test.go:3: c  a_test.go:5: e  a_test.go:6: f  a_test.go:7: g" {
		t.Fatalf("%q", got)
	}
}
