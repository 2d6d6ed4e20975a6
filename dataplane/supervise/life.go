package supervise

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
)

// Life is what a supervisor gives the process that it starts.
type Life struct {
	Nonce   uint64 `json:"nonce"`   // of the incarnation, never given again
	Crashes uint64 `json:"crashes"` // of the processes before it
	Last    string `json:"last"`    // how the last of those ended
	LastAt  int64  `json:"lastAt"`  // and when: seconds since 1970
	// Blames are those that the supervisor knows, of both nodes.
	Blames []Blame `json:"blames,omitempty"`

	notes  *os.File // to the supervisor
	blamed *atomic.Bool
}

// variable hands a Life over. A command in the container that has the same environment does not
// have the pipe.
const variable = "GEMEL_SUPERVISED"

// The descriptor that ends with the supervisor, and the one that takes notes for it. They are kept
// when the process begins its program again (exec), as it does to become an I/O flusher.
const (
	pipe      = 3
	notesPipe = 4
)

func (l *Life) environ() (out []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, variable+"=") {
			out = append(out, v)
		}
	}
	raw, err := json.Marshal(l)
	if err != nil {
		panic(err) // plain data
	}
	return append(out, variable+"="+string(raw))
}

// Supervised returns the life that a supervisor has given this process, nil if there is none. The
// process is killed from then on when its supervisor ends.
func Supervised() (*Life, error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	l := &Life{}
	if err := json.Unmarshal([]byte(text), l); err != nil || l.Nonce == 0 {
		return nil, fmt.Errorf("%s: %q is not what a supervisor sets: unset it", variable, text)
	}
	f := os.NewFile(pipe, "supervisor")
	l.notes, l.blamed = os.NewFile(notesPipe, "notes"), new(atomic.Bool)
	for fd, x := range map[int]*os.File{pipe: f, notesPipe: l.notes} {
		if st, err := x.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
			return nil, fmt.Errorf("%s is set, and descriptor %d is no pipe of a supervisor: unset it", variable, fd)
		}
	}
	if err := syscall.SetNonblock(notesPipe, true); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", notesPipe, err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, f) // nothing is sent: it returns when the supervisor has ended
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
	return l, nil
}
