package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

// mutant is the program without one guard.
type mutant struct {
	hazard int           // 0: of the policy that moves ownership; ofCopies, ofSpread, ofGroups, ofStriped, ofPath, ofSupervisor, ofTiers, ofExtents, ofMembers
	name   string        // the mistake, as it is printed
	edits  []mutate.Edit // files below the module's root
	pkg    string        // whose test
	test   string        // has to fail
}

func (m mutant) String() string {
	switch m.hazard {
	case ofCopies:
		return "copies: " + m.name
	case ofSpread:
		return "spread: " + m.name
	case ofGroups:
		return "groups: " + m.name
	case ofStriped:
		return "striped: " + m.name
	case ofSupervisor:
		return "supervisor: " + m.name
	case ofExtents:
		return "extents: " + m.name
	case ofMembers:
		return "members: " + m.name
	case ofTiers:
		return "tiers: " + m.name
	case ofPath:
		return "path: " + m.name
	case 0:
		return "ownership: " + m.name
	}
	return fmt.Sprintf("hazard %d: %s", m.hazard, m.name)
}

// outcome is the result of a mutant.
type outcome struct {
	mutant
	caught bool
	by     string // the tests that failed
	took   time.Duration
	err    error // it could not be tried
}

func (o outcome) verdict() string {
	switch {
	case o.err != nil:
		return o.err.Error()
	case !o.caught:
		return fmt.Sprintf("not caught by %s of %s", o.test, o.pkg)
	}
	return o.by
}

// problem is why a mutant is not proven to be caught.
func (o *outcome) problem() error {
	if o.caught {
		return nil
	}
	return fmt.Errorf("%s: %s", o.mutant, o.verdict())
}

type runner struct {
	root, dir string
	report    func(outcome)
}

// limit of one test's run. A mutant that makes it hang is caught, too.
func limit(pkg string) string {
	if strings.HasPrefix(pkg, "e2e/") {
		return "4m" // it builds what it runs
	}
	return "1m"
}

// goTest runs tests of a package, which may build programs themselves: flags are those of every go
// command.
func (r *runner) goTest(ctx context.Context, pkg, tests string, flags ...string) (string, error) {
	c := exec.CommandContext(ctx, "go", "test", "-v", "-count=1", "-vet=off", "-timeout", limit(pkg), "-run", "^("+tests+")$", "./"+pkg)
	c.Dir = r.root
	c.Env = append(os.Environ(), "GOFLAGS="+strings.Join(append(strings.Fields(os.Getenv("GOFLAGS")), flags...), " "))
	out, err := c.CombinedOutput()
	return string(out), err
}

// control runs all the tests on the unchanged program: each test exists, and passes.
func (r *runner) control(ctx context.Context, ms []mutant) error {
	tests := map[string][]string{}
	for _, m := range ms {
		if !slices.Contains(tests[m.pkg], m.test) {
			tests[m.pkg] = append(tests[m.pkg], m.test)
		}
	}
	var errs []error
	for pkg, names := range tests {
		out, err := r.goTest(ctx, pkg, strings.Join(names, "|"))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s fails as it is: %w\n%s", pkg, err, out))
			continue
		}
		for _, n := range names {
			if !strings.Contains(out, "--- PASS: "+n+" ") {
				errs = append(errs, fmt.Errorf("%s of %s does not exist, or is skipped here", n, pkg))
			}
		}
	}
	return errors.Join(errs...)
}

// all tries every mutant.
func (r *runner) all(ctx context.Context, ms []mutant) []outcome {
	var mu sync.Mutex
	return mutate.Each(ms, func(i int, m mutant) outcome {
		start := time.Now()
		o := r.try(ctx, fmt.Sprint(i), m)
		o.took = time.Since(start)
		mu.Lock()
		defer mu.Unlock()
		r.report(o)
		return o
	})
}

// failed finds the tests that failed.
var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

func (r *runner) try(ctx context.Context, name string, m mutant) (o outcome) {
	o.mutant = m
	overlay, err := mutate.Overlay(r.root, r.dir, name, m.edits)
	if err != nil {
		o.err = err
		return o
	}
	out, err := r.goTest(ctx, m.pkg, m.test, "-overlay="+overlay)
	o.caught, o.by, o.err = judge(out, err)
	if o.err == nil && ctx.Err() != nil {
		o.err = ctx.Err()
	}
	return o
}

// judge reads the output of the test of a mutant. Only a failed test has caught the mutant: a
// program that does not build proves nothing.
func judge(out string, err error) (caught bool, by string, problem error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, "", nil
	case !errors.As(err, &exit):
		return false, "", err
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return false, "", fmt.Errorf("it does not build: %s", out)
	case strings.Contains(out, "panic: test timed out"):
		return true, "it does not end", nil
	case strings.Contains(out, "\npanic: ") || strings.HasPrefix(out, "panic: "):
		return true, "it panics", nil
	}
	// Subtests follow their test: the last name of each says the most.
	var names []string
	for _, f := range failed.FindAllStringSubmatch(out, -1) {
		if i := len(names) - 1; i >= 0 && strings.HasPrefix(f[1], names[i]+"/") {
			names[i] = f[1]
			continue
		}
		names = append(names, f[1])
	}
	if len(names) == 0 {
		return false, "", fmt.Errorf("no test failed: %s", out)
	}
	return true, strings.Join(names, ", "), nil
}
