package kernel

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// restarts end a node's process in an orderly way and start it again, as an upgrade does.
func restarts(o *ordeal) {
	restart := func(ctx SpecContext, who string, i int) (counted bool) {
		GinkgoHelper()
		counted = o.event(ctx, who+" "+harness.Names[i]+" restarted", &results.Pause.TargetRestart, killedBound, func() error {
			if err := o.r.pair.Term(i); err != nil {
				return err
			}
			if err := o.r.pair.StartNode(i); err != nil {
				return err
			}
			return o.r.pair.WaitInSync(ctx)
		})
		o.settled(ctx)
		return counted
	}

	It("continues when targets are restarted one after the other", func(ctx SpecContext) {
		repeat(2, func() bool { return restart(ctx, "owner", o.owner(ctx)) })
		repeat(2, func() bool { return restart(ctx, "node", 1-o.owner(ctx)) })
		Expect(o.v.move(ctx, 0)).To(Succeed())
		o.settled(ctx)
	})
}
