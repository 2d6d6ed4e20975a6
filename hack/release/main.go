// Command release makes a release that this tree is upgraded from, once, and prints its name, the
// folder of its source and that of its commands.
//
//	go run ./hack/release [NAME]    without a name: the last one of internal/testkit/release/releases.txt
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/release"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	r, err := release.Latest()
	switch {
	case len(args) > 1:
		return fmt.Errorf("one name at most, not %q", args)
	case len(args) == 1:
		r, err = release.Find(args[0])
	}
	if err != nil {
		return err
	}
	s, err := release.Default(harness.Root(), os.Stderr)
	if err != nil {
		return err
	}
	t, err := s.Make(ctx, r)
	if err != nil {
		return err
	}
	fmt.Println(r.Name, t.Source, t.Bin)
	return nil
}
