package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const (
	// cutFor is less than the I/O deadline (30 s) and more than the time of detection.
	cutFor = 10 * time.Second
	// cutBound is about three times the time of detection: the next ping, its missing answer, the
	// switch to the next path.
	cutBound = 15 * time.Second
)

// cuts are the specs that cut the networks between the worker and the pair. The nodes of the pair
// still hear each other.
func cuts(o *ordeal) {
	// noticed waits until the map uses this number of paths.
	noticed := func(ctx context.Context, paths int) {
		GinkgoHelper()
		Eventually(o.v.activePaths).WithContext(ctx).WithTimeout(60 * time.Second).Should(Equal(paths))
	}

	It("continues when one of two networks is cut", func(ctx SpecContext) {
		n := 0
		repeat(2, func() bool {
			i := n % 2
			n++
			DeferCleanup(func() { _ = o.r.net.restore(i) })
			cut := o.event(ctx, bridges[i]+" cut", &results.Pause.OneNetworkCut, cutBound, func() error {
				if err := o.r.net.cut(i); err != nil {
					return err
				}
				noticed(ctx, 2)
				return nil
			})
			restored := o.event(ctx, bridges[i]+" restored", &results.Pause.OneNetworkCut, cutBound, func() error { return o.r.net.restore(i) })
			o.settled(ctx)
			return cut && restored
		})
	})

	It("waits while both networks are cut", func(ctx SpecContext) {
		repeat(2, func() bool {
			DeferCleanup(func() { _, _ = o.r.net.restore(0), o.r.net.restore(1) })
			counted := o.event(ctx, fmt.Sprintf("both networks cut for %v", cutFor), &results.Pause.BothNetworksCut, cutFor+cutBound, func() error {
				begun := time.Now()
				if err := errors.Join(o.r.net.cut(0), o.r.net.cut(1)); err != nil {
					return err
				}
				noticed(ctx, 0)
				time.Sleep(time.Until(begun.Add(cutFor)))
				return errors.Join(o.r.net.restore(0), o.r.net.restore(1))
			})
			o.settled(ctx)
			return counted
		})
	})
}
