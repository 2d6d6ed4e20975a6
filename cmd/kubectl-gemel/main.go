// Command kubectl-gemel is the kubectl plugin of Gemel: it shows the health of Gemel and diagnoses
// claims.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gemel-storage/gemel/controllers/kubectlgemel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := kubectlgemel.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl-gemel:", err)
		os.Exit(kubectlgemel.ExitCode(err))
	}
}
