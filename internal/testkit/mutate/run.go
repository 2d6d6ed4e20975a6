package mutate

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Main is the main function of a command that tries mutants. It ends the process with status 1 if
// run returns an error. The context of run ends on an interrupt; root is the module's root, and dir
// is a temporary folder that is removed when run returns.
func Main(name string, run func(ctx context.Context, w io.Writer, root, dir string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := inTempDir(ctx, name, run)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func inTempDir(ctx context.Context, name string, run func(ctx context.Context, w io.Writer, root, dir string) error) error {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gemel-"+name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return run(ctx, os.Stdout, root, dir)
}

// Choose returns the mutants whose title contains only. It is an error if there is none, so that a
// misspelled title does not pass as a run without survivors.
func Choose[M any](all []M, only string, title func(M) string) ([]M, error) {
	var chosen []M
	for _, m := range all {
		if strings.Contains(title(m), only) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-only %q: nothing has this in its title", only)
	}
	return chosen, nil
}

// Each tries every mutant, as many at a time as there are processors, and returns the outcomes in
// the order of the mutants.
func Each[M, O any](mutants []M, try func(i int, m M) O) []O {
	out := make([]O, len(mutants))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, m := range mutants {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i] = try(i, m)
		})
	}
	wg.Wait()
	return out
}

// Problems returns an error for each outcome that has one.
func Problems[O any](all []O, problem func(*O) error) []error {
	var errs []error
	for i := range all {
		if err := problem(&all[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
