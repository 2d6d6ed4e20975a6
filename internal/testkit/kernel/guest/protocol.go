// Package guest speaks with the agent of a lab guest (e2e/kernel/agent): runs commands in it, moves
// files, reaches its sockets. The agent is for guests on a private network of the test only: it
// executes every command that it gets.
package guest

// Port that the agent listens on in the guest.
const Port = 7000

// Command is what the agent runs. The environment is the agent's own plus Env.
type Command struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env,omitempty"`
	Stdin   []byte   `json:"stdin,omitempty"`
	Seconds float64  `json:"seconds,omitempty"` // until it is killed with its children; 0: never
	Log     string   `json:"log,omitempty"`     // of a started process: the file that stdout and stderr go to
}

// Result of a command that ended.
type Result struct {
	Exit    int     `json:"exit"` // 128 + n after signal n, 124 after its time, 127 if it could not be started
	Stdout  []byte  `json:"stdout,omitempty"`
	Stderr  []byte  `json:"stderr,omitempty"`
	Error   string  `json:"error,omitempty"`   // why it could not be started or was killed
	Seconds float64 `json:"seconds,omitempty"` // it took
}

// Process that was started.
type Process struct {
	PID     int  `json:"pid"`
	Running bool `json:"running"`
	Exit    int  `json:"exit"` // as in Result
}
