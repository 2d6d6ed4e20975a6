package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// progress reads what ginkgo -v prints and shows a line for each test that has ended. Ginkgo gives
// first the outcome, then the name; where tests run one at a time the name comes first, after a
// ruler, and what the test says is between. (The messages that Kubernetes' tests post to
// -progress-report-url leave out the tests of external drivers.)
type progress struct {
	out    io.Writer
	start  time.Time
	rest   []byte // of a line that is not whole yet
	last   string // line
	name   string // that followed the last ruler
	ended  []string
	passed int
	failed int
}

// outcome is ginkgo's first line on a test: "• [31.2 seconds]", "• [FAILED] [31.2 seconds]".
var outcome = regexp.MustCompile(`^• (?:\[([A-Z! ]+)\] )?\[([0-9.]+) seconds\]$`)

// Write takes output as it comes, in pieces of any size. It never fails.
func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		p.rest = rest
		p.line(string(line))
	}
}

const ruler = "------------------------------"

func (p *progress) line(line string) {
	after := p.last
	p.last = line
	if p.ended == nil {
		if after == ruler {
			p.name = line
		}
		p.ended = outcome.FindStringSubmatch(line)
		return
	}
	word, seconds := "passed", p.ended[2]
	if p.ended[1] == "" || p.ended[1] == "SLOW TEST" {
		p.passed++
	} else {
		word = p.ended[1]
		p.failed++
	}
	p.ended = nil
	name := strings.TrimSpace(line)
	if line == ruler {
		name = p.name
	}
	if p.failed > 0 {
		word = fmt.Sprintf("%s (%d failed so far)", word, p.failed)
	}
	fmt.Fprintf(p.out, "%5.0f s  %3d  %s  %s (%s s)\n", time.Since(p.start).Seconds(), p.passed+p.failed, word, short(name), seconds)
}

// short leaves out what all names begin with.
func short(name string) string {
	if _, rest, ok := strings.Cut(name, "[Testpattern: "); ok {
		return "[" + rest
	}
	return name
}
