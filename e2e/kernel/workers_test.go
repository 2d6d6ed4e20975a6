package kernel

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The worker of this file authenticates, both ways.
var _ = Describe("a worker's configuration", Ordered, ContinueOnFailure, func() {
	var w *worker
	BeforeAll(func(ctx SpecContext) {
		_, w = newWorkerRig(ctx, "workers")
		w.chap = &targetv1.CHAP{User: "w", Secret: "correct-horse-battery", MutualUser: "pair", MutualSecret: "staple-of-the-pair"}
	})
	AfterEach(func() { tellFailure(w) })

	raw := func(ctx context.Context) *volume { GinkgoHelper(); return w.raw(ctx) }
	sh := func(ctx context.Context, line string) string { GinkgoHelper(); return w.sh(ctx, line) }
	cycle := func(ctx context.Context) {
		GinkgoHelper()
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/block/"+sh(ctx, "basename $(readlink -f "+v.device()+")")+"/slaves | wc -l")).To(Equal("2"))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}

	It("21, 27, 29: the secret is in one file that only root reads, the session has the name of the worker", hazard(21, 27, 29), func(ctx SpecContext) {
		v := raw(ctx)
		// Every command that is executed while the volume is staged.
		sh(ctx, `(while :; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' >>/tmp/argv; done) >/dev/null 2>&1 & echo $! >/tmp/watch`)
		Expect(v.stage(ctx)).To(Succeed())
		sh(ctx, "kill $(cat /tmp/watch)")
		Expect(sh(ctx, "grep -c iscsiadm /tmp/argv; true")).NotTo(Equal("0"))
		for _, secret := range []string{w.chap.Secret, w.chap.MutualSecret} {
			Expect(sh(ctx, fmt.Sprintf("grep -a -c '%s' /tmp/argv; true", strings.Replace(secret, "-", "[-]", 1)))).To(Equal("0"))
			Expect(sh(ctx, fmt.Sprintf("grep -c '%s' %s; true", strings.Replace(secret, "-", "[-]", 1), pluginLog))).To(Equal("0"))
			Expect(sh(ctx, "grep -rl '"+strings.Replace(secret, "-", "[-]", 1)+"' "+stateDir+"; true")).To(BeEmpty())
		}
		Expect(sh(ctx, "find /etc/iscsi/nodes -type f -printf '%m\n' | sort -u")).To(Equal("600"))
		Expect(sh(ctx, "cat /sys/class/iscsi_session/*/initiatorname | sort -u")).To(Equal(w.iqn))
		Expect(sh(ctx, "cat /etc/iscsi/initiatorname.iscsi")).NotTo(ContainSubstring(w.iqn))
		Expect(sh(ctx, "grep -rh node.startup /etc/iscsi/nodes | sort -u")).To(Equal("node.startup = manual"))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("29: wrong credentials are reported as such", hazard(29), func(ctx SpecContext) {
		v, right := raw(ctx), w.chap
		w.chap = &targetv1.CHAP{User: "w", Secret: "another-horse-battery"}
		defer func() { w.chap = right }()
		Expect(v.stage(ctx)).To(MatchError(ContainSubstring("do not agree on CHAP credentials")))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})

	for _, mode := range []string{"yes", "smart", "greedy", "strict", "off"} {
		It("7: find_multipaths "+mode, hazard(7), func(ctx SpecContext) {
			sh(ctx, "printf 'defaults {\\n\\tfind_multipaths "+mode+"\\n}\\n' >/etc/multipath.conf; multipathd reconfigure; sleep 1")
			Expect(sh(ctx, "multipathd show config local | grep find_multipaths | head -1")).To(Or(ContainSubstring(mode), ContainSubstring("on"))) // which is shown for yes
			cycle(ctx)
		})
	}

	It("7: a disk of another owner is left alone", hazard(7), func(ctx SpecContext) {
		sh(ctx, "rm -f /etc/multipath.conf; multipathd reconfigure; modprobe scsi_debug dev_size_mb=8; udevadm settle")
		cycle(ctx)
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls -d /sys/block/dm-* | wc -l; grep -c '^/' /etc/multipath/wwids")).To(Equal("1\n1"))
		Expect(v.unstage(ctx)).To(Succeed())
		sh(ctx, "rmmod scsi_debug")
		Expect(w.left(ctx)).To(BeEmpty())
	})

	It("8: the administrator's polling interval stays, and a conflicting setting is named with its fix", hazard(8), func(ctx SpecContext) {
		ready := func() string {
			p, err := w.ident.Probe(ctx, &csi.ProbeRequest{})
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint("ready ", p.Ready.GetValue())
		}
		soon := func(f func() string) AsyncAssertion { return Eventually(f).WithTimeout(20 * time.Second) }
		conf := func(text string) { sh(ctx, "printf '"+text+"' >/etc/multipath.conf; multipathd reconfigure") }
		polling := func() string { return sh(ctx, "multipathd show config local | grep -w polling_interval") }
		soon(ready).Should(Equal("ready true"))
		Expect(polling()).To(HaveSuffix("polling_interval 1"))
		conf(`defaults {\n\tpolling_interval 3\n}\n`)
		soon(func() string { ready(); return polling() }).Should(HaveSuffix("polling_interval 3"))
		Expect(sh(ctx, "grep no_path_retry /etc/multipath/conf.d/gemel.conf")).To(ContainSubstring("10"))
		conf(`overrides {\n\tno_path_retry fail\n}\n`)
		soon(ready).Should(And(ContainSubstring("overrides { no_path_retry"), ContainSubstring("move no_path_retry from overrides")))
		conf(`blacklist {\n\twwid ".*"\n}\n`)
		soon(ready).Should(And(ContainSubstring("blacklist { wwid"), ContainSubstring("blacklist_exceptions")))
		sh(ctx, "rm /etc/multipath.conf /etc/multipath/conf.d/gemel.conf; multipathd reconfigure")
		soon(ready).Should(Equal("ready true"))
		Expect(sh(ctx, "multipathd show config | grep -A9 GEMEL")).To(ContainSubstring("group_by_prio"))

		sh(ctx, pluginPath+" worker-clean --state-dir "+stateDir)
		Expect(sh(ctx, "ls /etc/multipath/conf.d /etc/iscsi/ifaces; multipathd show config | grep GEMEL; true")).NotTo(ContainSubstring("gemel"))
		soon(ready).Should(Equal("ready true"))

		sh(ctx, "multipathd shutdown; while pidof multipathd; do sleep 0.1; done")
		soon(ready).Should(And(ContainSubstring("multipathd does not run"), ContainSubstring("systemctl enable --now multipathd")))
		sh(ctx, "kill $(pidof iscsid); while pidof iscsid; do sleep 0.1; done")
		soon(ready).Should(And(ContainSubstring("iscsid does not run"), ContainSubstring("multipathd does not run")))
		sh(ctx, daemons)
		soon(ready).Should(Equal("ready true"))
		cycle(ctx)
	})

	It("20: from a container, through the worker's namespaces", hazard(20), func(ctx SpecContext) {
		Expect(w.kill(ctx)).To(Succeed())
		w.enter = []string{"unshare", "--mount", "--net", "--ipc", "--"}
		Expect(w.start(ctx)).To(Succeed())
		v := raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(v.publish(ctx)).To(Succeed())
		Expect(v.unpublish(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
		Expect(w.kill(ctx)).To(Succeed())
		w.enter = nil
		Expect(w.start(ctx)).To(Succeed())
	})

	It("30: a process that volumes depend on becomes an I/O flusher with locked memory", hazard(30), func(ctx SpecContext) {
		// CI machines may lack CAP_SYS_RESOURCE; this one has it.
		tests := filepath.Join(work, "resident.test")
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", tests, "./internal/resident")
		cmd.Dir = harness.Root()
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		program, err := os.ReadFile(tests)
		Expect(err).NotTo(HaveOccurred())
		Expect(w.Put(ctx, "/tmp/resident.test", 0o755, program)).To(Succeed())
		text := sh(ctx, "/tmp/resident.test -test.v 2>&1; echo code $?")
		Expect(text).To(And(HaveSuffix("code 0"), ContainSubstring("PASS: TestBecomeFlusher "), ContainSubstring("PASS: TestStartFlusher "),
			ContainSubstring("PASS: TestLockKeepsUsedMemoryOnly ")))
	})

	It("chooses its way of attaching by the features of the kernel", func(ctx SpecContext) {
		auto := func() string {
			return sh(ctx, "timeout 2 "+pluginPath+" --mode node --endpoint unix:///run/auto.sock --state-dir /tmp/auto --attach auto 2>&1 | grep 'way of attaching'; true")
		}
		Expect(auto()).To(And(ContainSubstring("attach=kernel"), ContainSubstring("has iSCSI and dm-multipath")))
		// A missing daemon or package is no reason to choose the other way.
		sh(ctx, "mv /usr/sbin/multipath /tmp/multipath")
		defer sh(ctx, "mv /tmp/multipath /usr/sbin/multipath")
		Expect(auto()).To(ContainSubstring("attach=kernel"))
	})

	It("17: after a restart of the machine, records and node database are put in order", hazard(17), func(ctx SpecContext) {
		v, gone := raw(ctx), raw(ctx)
		Expect(v.stage(ctx)).To(Succeed())
		Expect(gone.stage(ctx)).To(Succeed())
		_ = w.conn.Close()
		sh(ctx, "sync") // the guest's own filesystem has no journal
		Expect(w.Reset(ctx)).To(Succeed())
		sh(ctx, daemons)
		Expect(sh(ctx, "ls /sys/class/iscsi_session 2>/dev/null; true")).To(BeEmpty())
		Expect(w.start(ctx)).To(Succeed())
		Expect(v.stage(ctx)).To(Succeed())
		Expect(sh(ctx, "ls /sys/block/dm-*/slaves | wc -l")).To(Equal("2"))
		Expect(gone.unstage(ctx)).To(Succeed())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))
})
