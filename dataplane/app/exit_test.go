package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/node"
	"github.com/gemel-storage/gemel/internal/exits"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

func TestExitCodes(t *testing.T) {
	for _, x := range []struct {
		err  error
		want int
	}{{nil, exits.OK}, {errors.New("the arbiter has no address"), exits.Failed}, {fmt.Errorf("%w: the store failed", node.ErrLeft), exits.Left},
		{fmt.Errorf("%w, after 10s", node.ErrStop), exits.Failed},
		{errors.Join(fmt.Errorf("%w: the store failed", node.ErrLeft), errors.New("last words: no space")), exits.Left},
		{ended(exits.Left), exits.Left}, {ended(exits.Failed), exits.Failed}} { // of a process under a supervisor, which has said why itself
		if got := code(x.err); got != x.want {
			t.Errorf("%v: %d, not %d", x.err, got, x.want)
		}
	}
}

// --help and docs/operations.md name the same codes.
func TestExitCodesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []int{exits.OK, exits.Failed, 2, exits.Left} {
		if !strings.Contains(Command().Long, fmt.Sprintf("\n  %d  ", c)) {
			t.Errorf("--help does not name exit code %d", c)
		}
		if !strings.Contains(string(doc), fmt.Sprintf("\n| %d | ", c)) {
			t.Errorf("docs/operations.md does not name exit code %d", c)
		}
	}
}

// What keeps a node from starting is its last line on stderr, and its termination message if there
// is a file for that.
func TestMainLeavesLastWords(t *testing.T) {
	words := filepath.Join(t.TempDir(), "termination-log")
	var stderr bytes.Buffer
	args := []string{"--node", "c", "--termination-message-path", words}
	if got := Main(t.Context(), args, &stderr); got != exits.Failed {
		t.Errorf("exit code %d", got)
	}
	if _, err := os.Stat(words); !os.IsNotExist(err) {
		t.Error("it makes a file that is not there")
	}
	if err := os.WriteFile(words, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if got := Main(t.Context(), args, &stderr); got != exits.Failed {
		t.Errorf("exit code %d", got)
	}
	said, err := os.ReadFile(words)
	if err != nil || !strings.Contains(string(said), "node:") || !strings.Contains(stderr.String(), "gemel-target: "+string(said)) {
		t.Errorf("last words %q, stderr %q, %v", said, stderr.String(), err)
	}
	// A command in the same container has no business there.
	if got := Main(t.Context(), []string{"status"}, &stderr); got != exits.Failed {
		t.Errorf("exit code %d", got)
	}
	if now, err := os.ReadFile(words); err != nil || !bytes.Equal(now, said) {
		t.Errorf("last words %q, %v", now, err)
	}
}
