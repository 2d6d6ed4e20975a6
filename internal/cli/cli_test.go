package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestLoggerLevelAndFormat(t *testing.T) {
	var b bytes.Buffer
	l, err := Logger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("not this")
	l.Warn("this")
	if got := b.String(); !strings.Contains(got, `"msg":"this"`) || strings.Contains(got, "not this") {
		t.Fatalf("%s", got)
	}
	for _, x := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := Logger(&b, x[0], x[1]); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%v: %v", x, err)
		}
	}
}
