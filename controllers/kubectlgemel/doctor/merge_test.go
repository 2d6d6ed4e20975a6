package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func found(n int, s Severity, cause string) (list []Finding) {
	for i := range n {
		name := fmt.Sprintf("%s-%02d", cause, i)
		list = append(list, Finding{Severity: s, Problem: "p", Cause: cause, Evidence: []string{"e"}, Procedure: []string{"see {name}"}, at: ref{kindHost, name}})
	}
	return list
}

func TestMerge(t *testing.T) {
	few := merge(found(maxAlike, Warning, "x"))
	if len(few) != maxAlike || few[0].Count != 1 || few[2].Procedure[0] != "see x-02" || few[0].Evidence[0] != "e" {
		t.Errorf("%+v", few)
	}
	list := merge(append(found(maxAlike+3, Critical, "x"), append(found(1, Warning, "x"), found(1, Critical, "y")...)...))
	if len(list) != 3 || list[0].Count != 6 || list[0].Object != "Host/x-00" || len(list[0].Others) != maxOthers || list[0].Procedure[0] != "see HOST" || list[0].Evidence[0] != "x-00: e" {
		t.Errorf("%+v", list)
	}
	var many []Finding
	for i := range 100 {
		many = append(many, found(1, Warning, fmt.Sprint("cause", i))...)
	}
	list = merge(many)
	last := list[len(list)-1]
	if len(list) != maxOfARule || last.Count != 91 || !strings.HasPrefix(last.Cause, "91 different causes; the first: cause9") {
		t.Errorf("%d: %+v", len(list), last)
	}
	same := found(2, Note, "x")
	same[1].at = same[0].at
	if list = merge(same); len(list) != 2 {
		t.Errorf("%+v", list)
	}
}

// A message of a condition is one line of limited length.
func TestShort(t *testing.T) {
	if got := short("a\n\tb  c"); got != "a b c" {
		t.Error(got)
	}
	if got := short(strings.Repeat("ä", maxLine)); len(got) > maxLine+5 || !utf8.ValidString(got) {
		t.Error(len(got))
	}
}

// The output has a limit that does not depend on the number of objects.
func TestOutputHasALimit(t *testing.T) {
	o := healthy(5000)
	for i := range o.LUNs {
		lu := &o.LUNs[i]
		set(&lu.Status.Conditions, "Ready", false, "Invalid", fmt.Sprintf("cause %d %s", i, strings.Repeat("x", 5000)), time.Hour)
		set(&lu.Status.Conditions, "Published", false, "NotEnrolled", fmt.Sprintf("cause %d", i), time.Hour)
		if i%2 == 0 {
			lu.DeletionTimestamp = at(time.Hour)
		}
	}
	list := Examine(o, now)
	size := 0
	for _, f := range list {
		size += len(f.Cause) + len(strings.Join(f.Evidence, "")) + len(strings.Join(f.Procedure, ""))
	}
	if len(list) > 3*maxOfARule || size > 100<<10 {
		t.Error(len(list), size)
	}
}
