package mutate

import (
	"strings"
	"testing"
)

// A mistake that leaves an import or a variable unused does not build.
func TestMutantThatDoesNotBuildIsAnError(t *testing.T) {
	root, err := ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const file = "internal/testkit/mutate/mutate.go"
	sound := []Edit{{file, "n != 1 {", "n != 2 {"}}
	unused := []Edit{{file, "raw, err := json.Marshal(map[string]map[string]string{\"Replace\": replace})", "raw, err := []byte(nil), error(nil)"}}
	typed := []Edit{{file, "n != 1 {", `n != "one" {`}}
	c, err := NewTypes(t.Context(), root, sound, unused, typed)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(sound); err != nil {
		t.Error(err)
	}
	if err := c.Check(unused); err == nil || !strings.Contains(err.Error(), `"encoding/json" imported and not used`) {
		t.Error(err)
	}
	if err := c.Check(typed); err == nil || !strings.Contains(err.Error(), "mutate.go") {
		t.Error(err)
	}
}
