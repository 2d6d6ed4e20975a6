// Package page has the commands of a page of docs/, so that a test runs what readers run.
package page

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var step = regexp.MustCompile("(?s)<!-- step: ([a-z]+) -->\n```bash\n(.*?)\n```")

// Steps are the blocks of commands of a page that have a name: the comment "step: NAME" before
// them. A page without any is an error.
func Steps(name string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", name))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, m := range step.FindAllSubmatch(text, -1) {
		out[string(m[1])] = string(m[2])
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("docs/%s has no commands with a name", name)
	}
	return out, nil
}
