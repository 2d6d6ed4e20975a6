package release

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Store makes releases from a repository and keeps them in a folder. What is there is not made
// again.
type Store struct {
	Repository string // a clone of the project
	Cache      string // a folder for each commit is made in it
	Log        io.Writer
}

// Default is the store of this tree, in the cache that hack/lib.sh names.
func Default(repository string, log io.Writer) (Store, error) {
	cache := os.Getenv("GEMEL_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return Store{}, fmt.Errorf("the cache folder: %w; set GEMEL_CACHE", err)
		}
		cache = filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "gemel")
	}
	return Store{Repository: repository, Cache: filepath.Join(cache, "releases"), Log: log}, nil
}

// Tree is a release on disk.
type Tree struct {
	Source string // as the commit has it
	Bin    string // its commands; static
}

// ErrMissing: the repository does not have the commit.
var ErrMissing = errors.New("the commit is not in this repository")

// Make extracts and builds a release. Calls of several processes for one release come one after the
// other; the first one does the work. ErrMissing.
func (s Store) Make(ctx context.Context, r Release) (t Tree, err error) {
	dir := filepath.Join(s.Cache, r.Commit)
	// What is built otherwise has another place: a cache may have what an earlier tree has built.
	built := sha256.Sum256([]byte(linkerFlags(r)))
	t = Tree{Source: filepath.Join(dir, "src"), Bin: filepath.Join(dir, fmt.Sprintf("bin-%x", built[:4]))}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return t, err
	}
	unlock, err := lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return t, fmt.Errorf("release %s: %w", r.Name, err)
	}
	defer unlock()
	for _, step := range []struct {
		into string
		make func(ctx context.Context, r Release, into string) error
	}{
		{t.Source, s.extract},
		{t.Bin, func(ctx context.Context, r Release, into string) error { return s.build(ctx, r, t.Source, into) }},
	} {
		if err := once(step.into, func(into string) error { return step.make(ctx, r, into) }); err != nil {
			return t, fmt.Errorf("release %s: %w", r.Name, err)
		}
	}
	return t, nil
}

// once makes a folder, unless it is there: it gets its name when it is whole.
func once(dir string, fill func(into string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	half := dir + ".half"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := os.Mkdir(half, 0o755); err != nil {
		return err
	}
	if err := fill(half); err != nil {
		return err
	}
	return os.Rename(half, dir)
}

// extract takes the files of the commit out of the repository, whose work tree and branches stay as
// they are.
func (s Store) extract(ctx context.Context, r Release, into string) error {
	if err := s.has(ctx, r); err != nil {
		return err
	}
	pack := filepath.Join(filepath.Dir(into), "src.tar")
	defer func() { _ = os.Remove(pack) }()
	if _, err := output(ctx, s.Repository, nil, "git", "archive", "--format=tar", "-o", pack, r.Commit); err != nil {
		return err
	}
	_, err := output(ctx, into, nil, "tar", "-xf", pack)
	return err
}

// has tells whether the repository knows the commit, and what to do if it does not.
func (s Store) has(ctx context.Context, r Release) error {
	if _, err := output(ctx, s.Repository, nil, "git", "rev-parse", "--git-dir"); err != nil {
		return fmt.Errorf("%w: %s is no git clone of the project, of whose history the release is made: %w", ErrMissing, s.Repository, err)
	}
	if _, err := output(ctx, s.Repository, nil, "git", "cat-file", "-e", r.Commit+"^{commit}"); err == nil {
		return nil
	}
	shallow, err := output(ctx, s.Repository, nil, "git", "rev-parse", "--is-shallow-repository")
	if err != nil {
		return err
	}
	if shallow == "true" {
		return fmt.Errorf("%w: %s is a shallow clone without %s: git fetch --unshallow", ErrMissing, s.Repository, r.Commit)
	}
	return fmt.Errorf("%w: %s has no %s: fetch the project's whole history", ErrMissing, s.Repository, r.Commit)
}

// linkerFlags name the version in all packages that have one, in this tree and in releases before
// it: the linker passes over those that a release does not have.
func linkerFlags(r Release) string {
	flags := "-s -w"
	for _, p := range []string{"dataplane/node", "target/node", "csi/app", "controllers/app", "controllers/kubectlgemel", "internal/kubectlgemel"} {
		flags += " -X github.com/gemel-storage/gemel/" + p + ".Version=" + r.Name
	}
	return flags
}

// build compiles the commands as hack/kind does, with the name of the release as their version. The
// release has a module of its own: what the environment says of modules is about this tree's.
func (s Store) build(ctx context.Context, r Release, source, into string) error {
	if s.Log != nil {
		_, _ = fmt.Fprintf(s.Log, "building release %s, once\n", r.Name)
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	_, err := output(ctx, source, env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", linkerFlags(r), "-o", into+"/", "./cmd/...")
	return err
}

// output runs a command in a folder; an error has what it said.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// lock takes a lock file, which a process that dies releases. The wait ends with the context.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-t.C:
			continue
		case <-ctx.Done():
			err = fmt.Errorf("another process is making it: %w", ctx.Err())
		}
		break
	}
	_ = f.Close()
	return nil, err
}
