// Command testsum reads `go test -json` and prints a summary: a line for each package, the output
// of failed tests, the packages that took long, every skipped test with its reason, and the count.
// It exits with 1 when anything failed. With -show, what the tests of the packages with one of
// these suffixes print is shown also when they pass: tables of results.
//
// gotestsum does most of this. It cannot show the output of chosen packages only, which is where
// the suites print their tables, nor end with the plain count that CI reads.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strings"
)

type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

type key struct{ pkg, test string }

type summary struct {
	out                     io.Writer
	output                  map[key][]string
	passed, failed, skipped int
	skips, broken           []string
	failedTests             map[string]bool
	show                    string
	longest                 []duration
}

// duration is how long the tests of a package took.
type duration struct {
	pkg     string
	seconds float64
}

func main() {
	s := &summary{out: os.Stdout, output: map[key][]string{}, failedTests: map[string]bool{}}
	flag.StringVar(&s.show, "show", "", "suffixes of packages, separated by commas: the output of their tests is shown also when they pass")
	flag.Parse()
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if !s.report() {
		os.Exit(1)
	}
}

func (s *summary) shows(pkg string) bool {
	for _, suffix := range strings.Split(s.show, ",") {
		if suffix != "" && strings.HasSuffix(pkg, suffix) {
			return true
		}
	}
	return false
}

func (s *summary) read(r io.Reader) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Action == "" {
			fmt.Fprintln(s.out, in.Text()) // a build error, or the output of a tool
			continue
		}
		s.add(e)
	}
	return in.Err()
}

func (s *summary) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		s.output[k] = append(s.output[k], e.Output)
		return
	case "build-fail":
		fmt.Fprint(s.out, strings.Join(s.output[k], ""))
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		if e.Elapsed >= longSeconds {
			s.longest = append(s.longest, duration{e.Package, e.Elapsed})
		}
		if e.Action == "fail" {
			fmt.Fprintf(s.out, "FAIL  %-60s %6.1fs\n", e.Package, e.Elapsed)
			if !s.failedTests[e.Package] { // it broke outside a test: a panic, a build, a timeout
				s.failed++
				s.broken = append(s.broken, e.Package)
				fmt.Fprint(s.out, strings.Join(s.output[k], ""))
			}
		} else if e.Action == "pass" {
			fmt.Fprintf(s.out, "ok    %-60s %6.1fs\n", e.Package, e.Elapsed)
		}
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
		if s.shows(e.Package) {
			s.print(e.Test, s.output[k])
		}
	case "skip":
		s.skipped++
		s.skips = append(s.skips, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(s.output[k])))
	case "fail":
		s.failed++
		s.failedTests[e.Package] = true
		s.broken = append(s.broken, e.Package+" "+e.Test)
		s.broken = append(s.broken, reasons(s.output[k])...)
		fmt.Fprintf(s.out, "---- FAIL %s %s\n%s", e.Package, e.Test, strings.Join(s.output[k], ""))
	}
	delete(s.output, k)
}

// print shows the output of a test that passed.
func (s *summary) print(test string, out []string) {
	for _, l := range out {
		if t := strings.TrimRight(l, "\n"); t != "" && !strings.HasPrefix(strings.TrimSpace(t), "=== ") && !strings.HasPrefix(strings.TrimSpace(t), "--- ") {
			fmt.Fprintf(s.out, "%s | %s\n", test, t)
		}
	}
}

// reasons are the first lines that a failed test reported, and the last: the end of the summary has
// them, since what CI keeps of a run may be its end only.
func reasons(out []string) (lines []string) {
	for _, l := range out {
		if t := strings.TrimRight(l, "\n"); reported.MatchString(t) {
			lines = append(lines, t)
		}
	}
	if n := len(lines); n > 2*maxReasons {
		lines = append(lines[:maxReasons:maxReasons], lines[n-maxReasons:]...)
	}
	return lines
}

// reported is what testing writes before the text of Error, Fatal and Log.
var reported = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

const maxReasons = 3

// reason finds the reason that a skipped test gave.
func reason(out []string) string {
	for _, l := range out {
		if t := strings.TrimSpace(l); t != "" && !strings.HasPrefix(t, "=== ") && !strings.HasPrefix(t, "--- ") {
			return t
		}
	}
	return "NO REASON GIVEN"
}

// longSeconds is how long a package takes at least that is listed among the longest ones: a run
// that takes longer than the last one shows why.
const longSeconds = 60

func (s *summary) report() bool {
	sort.SliceStable(s.longest, func(i, j int) bool { return s.longest[i].seconds > s.longest[j].seconds })
	if len(s.longest) > 0 {
		fmt.Fprintln(s.out, "\nlongest:")
		for _, x := range s.longest {
			fmt.Fprintf(s.out, "  %6.1fs %s\n", x.seconds, x.pkg)
		}
	}
	sort.Strings(s.skips)
	if len(s.skips) > 0 {
		fmt.Fprintln(s.out, "\nskipped:")
		for _, x := range s.skips {
			fmt.Fprintln(s.out, "  "+x)
		}
	}
	if len(s.broken) > 0 {
		fmt.Fprintln(s.out, "\nfailed:")
		for _, x := range s.broken {
			fmt.Fprintln(s.out, "  "+x)
		}
	}
	if s.passed+s.failed == 0 {
		s.failed++
		fmt.Fprintln(s.out, "no test ran")
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return s.failed == 0
}
