package nodesim

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// watchdog ends a history that does not come to rest: a goroutine waits for a lock whose holder
// waits for a disk, or runs in circles, so that fake time does not advance.
type watchdog struct{ t *time.Timer }

// realLimit is the most that a history may take of real time.
const realLimit = 4 * time.Minute

func newWatchdog(seed uint64) *watchdog {
	return &watchdog{time.AfterFunc(realLimit, func() {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		stuck(seed, fmt.Sprintf("fake time does not advance for %v: a goroutine waits for a lock whose holder waits, or runs in circles", realLimit), string(buf))
	})}
}

func (d *watchdog) stop() { d.t.Stop() }

// stuck ends the process: a bubble has no other end while something runs in it.
func stuck(seed uint64, text, stacks string) {
	if onStuck != nil {
		onStuck(seed, text)
	}
	fmt.Fprintf(os.Stderr, "%s\nseed %d: %s\n", stacks, seed, text)
	os.Exit(2)
}

// onStuck is called before the process ends.
var onStuck func(seed uint64, text string)

// endBound is how long anything may take to end after the history is over.
const endBound = 2 * time.Minute

// must waits for an end without which the bubble cannot end. If it does not come, the process has
// to end.
func (w *world) must(what string, wait func()) {
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(endBound):
		w.fail("%s", what)
		stuck(w.seed, strings.Join(w.violations, "\n"), strings.Join(strangers(), "\n\n"))
	}
}

var bubble = regexp.MustCompile(`synctest bubble (\d+)`)

// strangers are the goroutines of this bubble beside the one at hand.
func strangers() (list []string) {
	buf := make([]byte, 8<<20)
	stacks := bytes.Split(buf[:runtime.Stack(buf, true)], []byte("\n\n"))
	own := bubble.FindSubmatch(stacks[0])
	if own == nil {
		return nil
	}
	for _, s := range stacks[1:] {
		head, _, _ := bytes.Cut(s, []byte("\n"))
		if m := bubble.FindSubmatch(head); m != nil && string(m[1]) == string(own[1]) && !bytes.Contains(s, []byte("synctest.Run(")) && !bytes.Contains(s, []byte("testingSynctestTest")) {
			list = append(list, string(s))
		}
	}
	return list
}
