// Command gemel-csi is the CSI plugin csi.gemel.storage.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/csi/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := app.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gemel-csi:", err)
		os.Exit(1)
	}
}
