package balance

import (
	"os"
	"strings"
	"testing"
)

// docs/ownership.md explains every reason, and has an example of each.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Reason{ReasonDrain, ReasonPin, ReasonConnectivity, ReasonUnusedPath, ReasonNearness, ReasonFailBack, ReasonProbe, ReasonBalance} {
		if !strings.Contains(string(text), "| `"+string(r)+"` |") {
			t.Errorf("the table lacks %s", r)
		}
		if !strings.Contains(string(text), "\n"+string(r)+": ") {
			t.Errorf("there is no example of %s", r)
		}
	}
}
