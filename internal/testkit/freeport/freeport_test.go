package freeport

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// asked is set where the test's binary is one of the processes that ask.
const asked = "GEMEL_FREEPORT_ASKED"

// Processes, each with several goroutines that ask at the same time, get different ports as long as
// they live, and servers can be started on them.
func TestProcessesGetDifferentPorts(t *testing.T) {
	if os.Getenv(asked) != "" {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 40 {
					a, err := Addr("127.0.0.1")
					if err != nil {
						t.Error(err)
					}
					fmt.Println("PORT", a)
				}
			})
		}
		wg.Wait()
		fmt.Println("DONE")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until everybody has asked
		return
	}
	seen := map[string]bool{}
	for range 4 {
		c := exec.Command(os.Args[0], "-test.run=^TestProcessesGetDifferentPorts$")
		c.Env = append(os.Environ(), asked+"=1")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_ = c.Wait()
		}()
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "DONE" {
			addr, ok := strings.CutPrefix(lines.Text(), "PORT ")
			if !ok || seen[addr] {
				t.Errorf("%q once more, or no port", lines.Text())
			}
			seen[addr] = true
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Error(err)
				continue
			}
			defer func() { _ = l.Close() }()
		}
	}
	if len(seen) != 4*4*40 {
		t.Errorf("%d ports", len(seen))
	}
}

// A port that somebody listens on, on one of the hosts, is passed over.
func TestTakenPortIsPassedOver(t *testing.T) {
	d := dealer{name: "@gemel-ports-test-taken-"}
	port, err := d.on([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port+1)); err == nil { // else somebody listens there already
		defer func() { _ = l.Close() }()
	}
	if got, err := d.on([]string{"127.0.0.1", "127.0.0.2"}); err != nil || got == port+1 {
		t.Errorf("%d %v", got, err)
	}
}

// When no block is left, one's own come again; a caller that gets none gets the range.
func TestUsedUp(t *testing.T) {
	x, y := dealer{name: "@gemel-ports-test-used-"}, dealer{name: "@gemel-ports-test-used-"}
	seen := map[int]int{}
	for range 2 * blocks * each {
		p, err := x.on(nil)
		if err != nil {
			t.Fatal(err)
		}
		seen[p]++
	}
	for p, n := range seen {
		if n != 2 || p < first || p >= first+blocks*each {
			t.Fatalf("port %d came %d times", p, n)
		}
	}
	if _, err := y.on(nil); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "20000 and 29999") {
		t.Error(err)
	}
	for _, l := range x.locks {
		_ = l.Close()
	}
	if len(seen) != blocks*each {
		t.Errorf("%d ports", len(seen))
	}
}
