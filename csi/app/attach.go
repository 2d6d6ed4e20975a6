package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/kernel"
	"github.com/gemel-storage/gemel/csi/attach/userspace"
)

// Values of --attach.
const (
	attachUserspace = "userspace"
	attachKernel    = "kernel"
	attachAuto      = "auto"
)

// attacher is the chosen attacher and its properties.
type attacher struct {
	attach.Attacher
	mode  string // as in the Host object
	why   string // reason for the mode
	ready func() error
	// run repairs attachments until the context ends; changed is called when paths may have
	// changed. nil: not needed.
	run func(ctx context.Context, changed func())
	// paths of all attachments that answer.
	paths func(ctx context.Context) ([]attach.Status, error)
}

// attacher creates the attacher; can is the number of volumes that it can hold, and by names the
// limit.
func (c *config) attacher(log *slog.Logger) (a attacher, can int64, by string, err error) {
	way, err := c.choose(kernel.MissingModules)
	if err != nil {
		return a, 0, "", err
	}
	log.Info("way of attaching", "attach", way.mode, "why", way.why)
	if way.mode == attachKernel {
		k, err := kernel.New(kernel.Config{Dir: filepath.Join(c.StateDir, kernelFolder), HostProc: c.HostProc, Deadline: c.IODeadline, Log: log})
		if err != nil {
			return a, 0, "", err
		}
		ready := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
			defer cancel()
			return k.Check(ctx)
		}
		if err := ready(); err != nil {
			log.Error("the worker does not meet the requirements of --attach", "err", err)
		}
		return attacher{k, "Kernel", way.why, ready, k.Run, k.Paths}, maxLUNs, "LUN numbers", nil
	}
	// The file of the program may be replaced while it runs; a holder is started from the running
	// version.
	u, err := userspace.New(userspace.Config{Dir: filepath.Join(c.StateDir, userspaceFolder), Command: []string{"/proc/self/exe", holderCommand},
		Agent: c.HolderAgent, Deadline: c.IODeadline, NoUnitAfter: c.NoLUNAfter, Log: log})
	if err != nil {
		return a, 0, "", err
	}
	can, by, err = userspace.Limit()
	return attacher{u, "Userspace", way.why, checkUserspace, nil, func(ctx context.Context) ([]attach.Status, error) { return each(ctx, u) }}, can, by, err
}

// each reads the status of all attachments.
func each(ctx context.Context, a attach.Attacher) (out []attach.Status, err error) {
	ids, err := a.Attached()
	for _, id := range ids {
		if st, err := a.Status(ctx, id); err == nil {
			out = append(out, st)
		}
	}
	return out, err
}

// cleanCmd is for a worker that the driver was removed from.
func cleanCmd() *cobra.Command {
	var stateDir, hostProc string
	cmd := &cobra.Command{
		Use: "worker-clean", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Short: "Remove the configuration of --attach kernel from this worker",
		Long: `worker-clean removes Gemel's multipath configuration file and its iSCSI interface record from this worker, after the node plugin was
removed. It fails while volumes are attached.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !filepath.IsAbs(stateDir) || !filepath.IsAbs(hostProc) {
				return errors.New("--state-dir and --host-proc: set the absolute paths of the node plugin")
			}
			k, err := kernel.New(kernel.Config{Dir: filepath.Join(stateDir, kernelFolder), HostProc: hostProc})
			if err != nil {
				return err
			}
			return k.Clean(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", "", "the node plugin's --state-dir")
	cmd.Flags().StringVar(&hostProc, "host-proc", "/proc/1", "the node plugin's --host-proc")
	return cmd
}

// checkLimit bounds one check of the worker's requirements.
const checkLimit = time.Minute

// Folders below --state-dir with a record for each attachment.
const (
	kernelFolder    = "attach-kernel"
	userspaceFolder = "attach"
)

// checkUserspace returns what is missing on this machine for userspace attachments.
func checkUserspace() error {
	var missing []string
	for _, p := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(p); err != nil {
			missing = append(missing, p)
		}
	}
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	if len(missing) > 0 {
		return fmt.Errorf("--attach userspace: missing %s", strings.Join(missing, ", "))
	}
	return nil
}
