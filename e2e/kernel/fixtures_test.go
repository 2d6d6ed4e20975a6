package kernel

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// recordEnv names the folder that fixtures are written to: the state of a worker, as the tests of
// csi/attach/kernel read it.
const recordEnv = "GEMEL_RECORD"

// fixture prints the state of a worker that the attacher reads: "F path" with the content indented
// by a blank, "L path target" for a link.
const fixture = `
file() { for f; do [ -f "$f" ] && { echo "F $f"; sed 's/^/ /' "$f" 2>/dev/null | sed '$a\'; }; done; }
link() { for f; do [ -L "$f" ] && echo "L $f $(readlink "$f")"; done; }
real() { for d; do readlink -f "$d"; done; }
link /sys/class/iscsi_session/* /sys/class/iscsi_connection/* /sys/class/scsi_device/* /sys/block/dm-*
for d in $(real /sys/class/iscsi_session/*); do file $d/{ifacename,initiatorname,targetname,target_id,state}; done
for d in $(real /sys/class/iscsi_connection/*); do file $d/{persistent_address,persistent_port,state}; done
for d in $(real /sys/class/scsi_device/*); do
  link $d/device; d=$(real $d/device)
  file $d/{wwid,vendor,model,state,dh_state,access_state}
  for b in $d/block/*; do file $b/{size,dev}; link $b/holders/*; done
done
for d in $(real /sys/block/dm-*); do file $d/dm/{uuid,name,suspended} $d/{size,dev}; link $d/slaves/* $d/holders/*; done
file /etc/multipath/wwids /etc/iscsi/ifaces/gemel $(find /etc/iscsi/nodes -type f)
out() { echo "F /out/$1"; shift; "$@" | sed 's/^/ /'; }
out mountinfo cat /proc/self/mountinfo
for d in /sys/block/dm-*/dm/name; do out "map-$(cat $d)" multipathd show map $(cat $d) json; done
out config multipathd show config local
true`

// This is not a test: it records the fixtures of other tests.
var _ = Describe("fixtures of a worker", func() {
	It("are recorded", func(ctx SpecContext) {
		dir := os.Getenv(recordEnv)
		if dir == "" {
			Skip(recordEnv + " names no folder to record to")
		}
		r, w := newWorkerRig(ctx, "pictures")
		take := func(name string) {
			GinkgoHelper()
			out, err := w.Shell(ctx, fixture)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.WriteFile(filepath.Join(dir, name+".txt"), []byte(out), 0o644)).To(Succeed())
		}
		take("empty")
		v1, err := w.create(ctx, 512<<20, "a", "xfs")
		Expect(err).NotTo(HaveOccurred())
		v2, err := w.create(ctx, 64<<20, "b", "")
		Expect(err).NotTo(HaveOccurred())
		for _, v := range []*volume{v1, v2} {
			Expect(v.stage(ctx)).To(Succeed())
			Expect(v.publish(ctx)).To(Succeed())
		}
		take("two-volumes")
		Expect(r.net.silence(1, "portal")).To(Succeed())
		Eventually(func() (string, error) { return w.Shell(ctx, "cat /sys/class/iscsi_session/*/state") }).Should(ContainSubstring("FREE")) // what was FAILED first: recovery_tmo is 0
		take("silent-portal")
		Expect(r.net.heal(1)).To(Succeed())
	})
})
