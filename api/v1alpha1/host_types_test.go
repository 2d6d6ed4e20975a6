package v1alpha1

import (
	"strings"
	"testing"
)

func TestErrorText(t *testing.T) {
	long := strings.Repeat("x", 511)
	for in, want := range map[string]string{"": "", "no session": "no session", long + "y": long + "y", long + "yz": long + "y", long + "ü": long, "a\xffb": "ab"} {
		if got := ErrorText(in); got != want {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
	}
}
