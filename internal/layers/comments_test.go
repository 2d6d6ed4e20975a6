package layers

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxComment is how long a line may be that is nothing but a comment, with tabs as four columns.
const maxComment = 100

// kept are comments that cannot be wrapped, or are tables: markers of generators, addresses, and
// what is indented within a comment.
var kept = regexp.MustCompile(`^//(go:| ?\+|nolint|\t| {2,}\S)|https?://`)

func TestCommentsAreWrapped(t *testing.T) {
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, ".pb.go") || strings.Contains(f.path, "zz_generated") {
			continue
		}
		name := filepath.Join("..", "..", f.path)
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
			continue
		}
		lines := strings.Split(string(text), "\n")
		for _, group := range tree.Comments {
			for _, c := range group.List {
				at := set.Position(c.Pos())
				line := lines[at.Line-1]
				if strings.TrimSpace(line[:at.Column-1]) != "" || kept.MatchString(c.Text) {
					continue // behind code, or not to be wrapped
				}
				if w := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); w > maxComment {
					t.Errorf("%s:%d: a comment of %d columns: wrap it at %d", f.path, at.Line, w, maxComment)
				}
			}
		}
	}
}
