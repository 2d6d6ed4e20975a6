package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/human"
)

// profile is the command that takes a profile of a node.
func (a *admin) profile() *cobra.Command {
	req := &targetv1.ProfileRequest{}
	var file string
	cmd := &cobra.Command{Use: "profile KIND", Short: "Take a profile of a node's process", Args: cobra.ExactArgs(1),
		Long: `Profile takes a profile of a node while it serves, for go tool pprof. KIND is cpu (where processor time goes), mutex or
block (where goroutines wait for locks, or for anything), each of the next seconds; or heap, allocs or goroutine, of this
moment. It needs no flag of the node and the same certificate as every other command.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Kind = args[0]
			a.timeout += time.Duration(req.Seconds) * time.Second
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				s, err := c.Profile(ctx, req)
				if err != nil {
					return err
				}
				var data []byte
				for {
					part, err := s.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						return err
					}
					data = append(data, part.Data...)
				}
				file := cmp.Or(file, req.Kind+".pprof")
				if err := os.WriteFile(file, data, 0o600); err != nil {
					return fmt.Errorf("--out: %w", err)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s, %s; to read it, run: go tool pprof -top %s\n", file, human.Size(uint64(len(data))), file)
				return err
			})
		}}
	cmd.Flags().Uint32Var(&req.Seconds, "seconds", 0, "how long to collect cpu, mutex and block, 1 to 60; 0: 10")
	cmd.Flags().StringVar(&file, "out", "", "file to write; default KIND.pprof")
	return cmd
}
