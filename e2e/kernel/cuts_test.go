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
	// cutFor is less than the I/O deadline (30 s) and more than it takes to notice.
	cutFor = 10 * time.Second
	// cutBound is about three times what finding out takes: a ping that is due, its answer that is missed, the next path.
	cutBound = 15 * time.Second
)

// cuts are what happens to the networks between the worker and the pair, whose nodes go on hearing each other.
func cuts(o *ordeal) {
	// noticed waits until the map uses so many paths.
	noticed := func(ctx context.Context, paths int) {
		GinkgoHelper()
		Eventually(o.v.activePaths).WithContext(ctx).WithTimeout(60 * time.Second).Should(Equal(paths))
	}

	It("goes on when one of two networks is cut", func(ctx SpecContext) {
		n := 0
		repeat(2, func() bool {
			i := n % 2
			n++
			DeferCleanup(func() { _ = o.r.net.mend(i) })
			cut := o.event(ctx, bridges[i]+" cut", &results.Pause.OneNetworkCut, cutBound, func() error {
				if err := o.r.net.cut(i); err != nil {
					return err
				}
				noticed(ctx, 2)
				return nil
			})
			mended := o.event(ctx, bridges[i]+" mended", &results.Pause.OneNetworkCut, cutBound, func() error { return o.r.net.mend(i) })
			o.settled(ctx)
			return cut && mended
		})
	})

	It("waits while both networks are cut", func(ctx SpecContext) {
		repeat(2, func() bool {
			DeferCleanup(func() { _, _ = o.r.net.mend(0), o.r.net.mend(1) })
			counted := o.event(ctx, fmt.Sprintf("both networks cut for %v", cutFor), &results.Pause.BothNetworksCut, cutFor+cutBound, func() error {
				begun := time.Now()
				if err := errors.Join(o.r.net.cut(0), o.r.net.cut(1)); err != nil {
					return err
				}
				noticed(ctx, 0)
				time.Sleep(time.Until(begun.Add(cutFor)))
				return errors.Join(o.r.net.mend(0), o.r.net.mend(1))
			})
			o.settled(ctx)
			return counted
		})
	})
}
