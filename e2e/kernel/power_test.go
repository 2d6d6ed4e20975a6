package kernel

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// losePower resets a worker while its filesystems are written to. What was synced before is there
// afterwards, and the journals are sound.
func losePower(ctx context.Context, w *worker) {
	GinkgoHelper()
	all := []*tried{w.try(ctx, "xfs", "a"), w.try(ctx, "ext4", "b")}
	var sums []string
	for _, t := range all {
		sums = append(sums, w.sh(ctx, "cd "+t.path()+" && mkdir kept && for i in $(seq 20); do head -c 100k /dev/urandom >kept/$i; done && sync -f . && sha256sum kept/*"))
	}
	eachGoesOn(ctx, all)
	w.sh(ctx, "sync") // the guest's own filesystem has no journal
	_ = w.conn.Close()
	Expect(w.Reset(ctx)).To(Succeed())
	w.sh(ctx, daemons)
	Expect(w.start(ctx)).To(Succeed())
	for i, t := range all {
		Expect(t.stage(ctx)).To(Succeed())
		Expect(t.publish(ctx)).To(Succeed())
		Expect(w.sh(ctx, "cd "+t.path()+" && sha256sum kept/*")).To(Equal(sums[i]), t.fs)
		w.sh(ctx, "rm "+t.path()+"/fsx "+t.path()+"/checked*; rm -f "+t.log("fsx")+" "+t.log("fio"))
		t.use(ctx)
		t.goesOn(ctx)
		t.end(ctx)
		t.clean(ctx)
	}
	Expect(w.left(ctx)).To(BeEmpty())
}
