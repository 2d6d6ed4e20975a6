// Command gemel-operator runs pairs of target nodes for StorageClusters and manages LogicalUnits on
// them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/controllers/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := app.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gemel-operator:", err)
		os.Exit(1)
	}
}
