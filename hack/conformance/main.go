// Command conformance runs libiscsi's iscsi-test-cu in full against a target and judges its
// results: a test that skipped has not passed, and any deviation from the reviewed list fails the
// run.
//
//	conformance [-variant name] [-reviewed file] [-min n] URL [URL]
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	variant := flag.String("variant", "plain", "name of this variant, for the table and the reviewed list")
	reviewed := flag.String("reviewed", "hack/conformance/reviewed.txt", "reviewed list; empty: report only")
	least := flag.Int("min", 180, "least number of tests passed and not skipped")
	limit := flag.Duration("timeout", 5*time.Minute, "limit of the whole run")
	tool := flag.String("tool", "iscsi-test-cu", "the test program")
	tests := flag.String("tests", "ALL", "tests to run")
	raw := flag.String("raw", "", "write the tool's output to this file")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: conformance [flags] URL [URL]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	list := map[string]expectation{}
	if *reviewed != "" {
		var err error
		if list, err = readReviewed(*reviewed); err != nil {
			fatal(err)
		}
	}
	text, err := runTool(ctx, *tool, *tests, flag.Args())
	if *raw != "" {
		if werr := os.WriteFile(*raw, text, 0o644); werr != nil {
			fatal(werr)
		}
	}
	results := parse(string(text))
	if len(results) == 0 {
		os.Stderr.Write(text)
		fatal(fmt.Errorf("%s ran no test: %w", *tool, err))
	}
	totals := table(os.Stdout, *variant, results)
	var bad []string
	if *reviewed != "" {
		bad = deviations(results, list, *variant)
	}
	if ctx.Err() != nil {
		bad = append(bad, fmt.Sprintf("the run was cut short: %v", ctx.Err()))
	}
	if totals[passed] < *least {
		bad = append(bad, fmt.Sprintf("%d tests passed and not skipped, at least %d have to", totals[passed], *least))
	}
	for _, b := range bad {
		fmt.Println("DEVIATION", b)
	}
	fmt.Printf("%s: %d passed, %d failed, %d skipped\n", *variant, totals[passed], totals[failed]+totals[hung], totals[skipped])
	if len(bad) > 0 {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "conformance:", err)
	os.Exit(1)
}

// runTool runs the tests and returns their output. The exit status of the tool says no more than
// its output.
func runTool(ctx context.Context, tool, tests string, urls []string) ([]byte, error) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, tool, append([]string{"-d", "-v", "-t", tests}, urls...)...)
	c.Stdout, c.Stderr = &out, io.Discard
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	return out.Bytes(), err
}

// table prints the families in the order they ran.
func table(w io.Writer, variant string, results []result) map[outcome]int {
	totals := map[outcome]int{}
	counts := map[string]map[outcome]int{}
	var families []string
	for _, r := range results {
		family, _, _ := strings.Cut(r.name, ".")
		if counts[family] == nil {
			counts[family] = map[outcome]int{}
			families = append(families, family)
		}
		counts[family][r.outcome]++
		totals[r.outcome]++
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tpassed\tfailed\tskipped\n", variant)
	for _, f := range families {
		c := counts[f]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", f, c[passed], c[failed]+c[hung], c[skipped])
	}
	t.Flush()
	return totals
}
