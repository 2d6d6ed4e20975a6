package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gemel-storage/gemel/dataplane/node"
	"github.com/gemel-storage/gemel/dataplane/supervise"
	"github.com/gemel-storage/gemel/internal/exits"
)

// ended is how the process of a supervisor ended, which has said why itself.
type ended int

func (e ended) Error() string {
	return fmt.Sprintf("the node's process ended with exit code %d", int(e))
}

// runSupervisor runs the command line of this process in another one.
func runSupervisor(ctx context.Context, cfg *node.Config) error {
	s, err := cfg.Supervisor(ctx)
	if err != nil {
		return err
	}
	s.Args = os.Args[1:]
	supervise.IgnoreOthers()
	code, err := supervise.Run(ctx, s)
	if err == nil && code != exits.OK {
		err = ended(code)
	}
	return err
}

// said reports whether the process that ended with err has said why.
func said(err error) bool {
	var e ended
	return errors.As(err, &e)
}

// fromEnvironment sets what no flag has set. The operator gives supervisors by these variables: the
// image of an older release ignores them, and would refuse flags.
func fromEnvironment(cfg *node.Config) {
	for variable, to := range map[string]*string{"GEMEL_SUPERVISOR_LISTEN": &cfg.SupervisorListen, "GEMEL_PEER_SUPERVISOR": &cfg.PeerSupervisor} {
		if *to == "" {
			*to = os.Getenv(variable)
		}
	}
}
