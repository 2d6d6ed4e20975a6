// Command gemel-target is one node of a dual-node iSCSI target.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/target/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := app.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gemel-target:", err)
		os.Exit(1)
	}
}
