// Package story tells a person at a terminal what happens. On a terminal a line at the bottom is
// kept up to date; in a pipe or log the same is said in whole lines, rarely.
package story

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Teller writes the story. Its methods are safe for concurrent use.
type Teller struct {
	mu     sync.Mutex
	out    io.Writer
	tty    bool
	colour bool
	width  int
	step   int
	total  int
	live   string // what the bottom line shows
	begun  time.Time
}

// New tells on f; total is the number of steps, 0 if not known.
func New(f *os.File, total int) *Teller {
	t := &Teller{out: f, total: total, width: 100, begun: time.Now()}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
		t.tty = true
		t.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 20 {
			t.width = int(ws.Col)
		}
	}
	return t
}

// To tells on any writer, as into a pipe.
func To(w io.Writer, total int) *Teller {
	return &Teller{out: w, total: total, width: 100, begun: time.Now()}
}

func (t *Teller) paint(code, s string) string {
	if !t.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *Teller) line(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live != "" {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
	fmt.Fprintln(t.out, s)
	if t.live != "" {
		fmt.Fprint(t.out, t.live)
	}
}

// Title is the headline.
func (t *Teller) Title(s string) { t.line(t.paint("1", s)) }

// Step begins a numbered step: what happens and, in a sentence, why.
func (t *Teller) Step(what, why string) {
	t.mu.Lock()
	t.step++
	n := fmt.Sprintf("%d.", t.step)
	if t.total > 0 {
		n = fmt.Sprintf("[%2d/%d]", t.step, t.total)
	}
	t.mu.Unlock()
	t.line("")
	t.line(t.paint("1;36", n) + " " + t.paint("1", what) + t.paint("2", fmt.Sprintf("  (%.1f s)", time.Since(t.begun).Seconds())))
	for _, l := range wrap(why, min(t.width, 110)-4) {
		t.line("    " + t.paint("2", l))
	}
}

// Fact is something that was seen.
func (t *Teller) Fact(format string, args ...any) {
	t.line("    " + t.paint("32", "-") + " " + fmt.Sprintf(format, args...))
}

// Problem is something that is wrong.
func (t *Teller) Problem(format string, args ...any) {
	for i, l := range strings.Split(fmt.Sprintf(format, args...), "\n") {
		mark := "!"
		if i > 0 {
			mark = " "
		}
		t.line("    " + t.paint("31", mark) + " " + l)
	}
}

// Plain is a line as it is.
func (t *Teller) Plain(s string) { t.line(s) }

// Table prints rows in aligned columns.
func (t *Teller) Table(rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			fmt.Fprintf(&b, "  %-*s", width[i], c)
		}
		t.line("  " + strings.TrimRight(b.String(), " "))
	}
}

// How often the bottom line changes, and how often a pipe gets a line.
const (
	liveEvery = 200 * time.Millisecond
	pipeEvery = 5 * time.Second
)

// Live shows text() until stop is called: at once and often on a terminal, every few seconds in a
// pipe. One at a time.
func (t *Teller) Live(text func() string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	every := pipeEvery
	if t.tty {
		every = liveEvery
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				t.show("")
				return
			case <-tick.C:
				t.show(text())
			}
		}
	}()
	var once sync.Once
	return func() { once.Do(func() { close(quit); <-done }) }
}

func (t *Teller) show(s string) {
	if !t.tty {
		if s != "" {
			t.line("    ... " + s)
		}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s != "" {
		s = "    " + s
		if len(s) > t.width-1 {
			s = s[:t.width-1]
		}
	}
	fmt.Fprint(t.out, "\r\x1b[K"+s)
	t.live = s
}

// Bar is a progress bar of done out of total.
func Bar(done, total int64) string {
	const cells = 24
	if total <= 0 {
		total = 1
	}
	done = min(max(done, 0), total)
	n := int(done * cells / total)
	return fmt.Sprintf("[%s%s] %3d %%", strings.Repeat("#", n), strings.Repeat(".", cells-n), done*100/total)
}

// Bytes prints a size in binary units.
func Bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// MS prints a duration in milliseconds.
func MS(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

func wrap(s string, width int) (lines []string) {
	var l string
	for _, w := range strings.Fields(s) {
		if l != "" && len(l)+1+len(w) > width {
			lines = append(lines, l)
			l = ""
		}
		if l != "" {
			l += " "
		}
		l += w
	}
	if l != "" {
		lines = append(lines, l)
	}
	return lines
}
