package release

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

func TestListOfReleases(t *testing.T) {
	for _, c := range []struct{ name, text, says string }{
		{"none", "# nothing yet\n\n", "names no release"},
		{"no commit", "0.1.0\n", `line 1: "0.1.0" must be`},
		{"a short commit", "# x\n0.1.0 0123456\n", "line 2"},
		{"no version", "v1 " + commit, "as 1.2.3"},
		{"twice", "0.1.0 " + commit + "\n0.1.0 " + commit + "\n", "line 2: release 0.1.0 is there twice"},
	} {
		if _, err := parse(c.text); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	all, err := parse("# the first\n0.1.0 " + commit + "\n\n0.2.0 " + strings.Repeat("a", 40))
	if err != nil || len(all) != 2 || all[0] != (Release{"0.1.0", commit}) || all[1].Name != "0.2.0" {
		t.Fatalf("%v, %v", all, err)
	}
	last, err := Latest()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Find(last.Name); err != nil || r != last {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := Find("9.9.9"); err == nil || !strings.Contains(err.Error(), last.Name) {
		t.Errorf("a release that there is not: %v", err)
	}
}

// project is a repository with two commits; the first one is a release.
func project(t *testing.T) (repository string, first Release) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git(t, dir, "init", "-q")
	write("go.mod", "module github.com/gemel-storage/gemel\n\ngo 1.24\n")
	write("dataplane/node/node.go", "package node\n\nvar Version = \"dev\"\n")
	write("cmd/hello/main.go", "package main\n\nimport \"github.com/gemel-storage/gemel/dataplane/node\"\n\nfunc main() { println(node.Version) }\n")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "one")
	first = Release{"1.2.3", git(t, dir, "rev-parse", "HEAD")}
	write("cmd/hello/main.go", "what no compiler takes")
	git(t, dir, "commit", "-q", "-a", "-m", "two")
	return dir, first
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestReleaseIsMadeOnceOfItsOwnCommit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir, first := project(t)
	t.Setenv("GOFLAGS", "-mod=mod") // what is said of this tree's module is not the release's business
	var said strings.Builder
	s := Store{Repository: dir, Cache: filepath.Join(t.TempDir(), "cache"), Log: &said}
	var tree Tree
	var all sync.WaitGroup
	for range 2 { // at the same time
		all.Go(func() {
			made, err := s.Make(ctx, first)
			if err != nil {
				t.Error(err)
				return
			}
			if filepath.Dir(made.Bin) != filepath.Join(s.Cache, first.Commit) {
				t.Errorf("%+v", made)
			}
		})
	}
	all.Wait()
	tree, err := s.Make(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(said.String(), "building release 1.2.3"); n != 1 {
		t.Errorf("built %d times: %s", n, said.String())
	}
	out, err := exec.CommandContext(ctx, filepath.Join(tree.Bin, "hello")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "1.2.3" {
		t.Errorf("%s, %v", out, err)
	}
	if now := git(t, dir, "status", "--porcelain"); now != "" {
		t.Errorf("the repository is not as it was: %s", now)
	}
	left, err := filepath.Glob(filepath.Join(s.Cache, first.Commit, "*"))
	if err != nil || len(left) != 3 { // src, bin, lock
		t.Errorf("left in the cache: %q, %v", left, err)
	}
}

func TestFailedBuildIsTriedAgain(t *testing.T) {
	dir, _ := project(t)
	broken := Release{"1.2.4", git(t, dir, "rev-parse", "HEAD")}
	s := Store{Repository: dir, Cache: t.TempDir()}
	for range 2 {
		if _, err := s.Make(t.Context(), broken); err == nil || !strings.Contains(err.Error(), "release 1.2.4: go build") {
			t.Fatalf("%v", err)
		}
	}
}

func TestCommitThatIsNotThere(t *testing.T) {
	dir, first := project(t)
	shallow := filepath.Join(t.TempDir(), "shallow")
	git(t, dir, "clone", "-q", "--depth=1", "file://"+dir, shallow)
	for _, c := range []struct {
		name, repository, says string
		r                      Release
	}{
		{"a shallow clone", shallow, "git fetch --unshallow", first},
		{"another history", dir, "whole history", Release{"1.2.3", commit}},
		{"no repository", t.TempDir(), "no git clone", first},
	} {
		s := Store{Repository: c.repository, Cache: t.TempDir()}
		_, err := s.Make(t.Context(), c.r)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "release 1.2.3") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
