package kind

import (
	"context"
	"encoding/base64"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// hidden looks for the CHAP credentials of all workers where people look: objects, events, logs.
// There have to be some.
func hidden(ctx context.Context) {
	GinkgoHelper()
	var secrets []string
	for _, key := range []string{"secret", "mutualSecret"} {
		out := kubectl(ctx, "get", "secret", "-n", namespace, "-l", "app.kubernetes.io/component=chap", "-o", "jsonpath={.items[*].data."+key+"}")
		for _, text := range strings.Fields(out) {
			raw, err := base64.StdEncoding.DecodeString(text)
			Expect(err).NotTo(HaveOccurred())
			secrets = append(secrets, string(raw))
		}
	}
	Expect(secrets).NotTo(BeEmpty(), "there are no CHAP secrets")
	places := map[string]string{
		"objects": kubectl(ctx, "get", "volumeattachment,pv,storagecluster,targetpair,logicalunit,host", "-o", "yaml"),
		"events":  kubectl(ctx, "get", "events.events.k8s.io", "-A", "-o", "yaml"),
		"pods":    kubectl(ctx, "get", "pod,statefulset,daemonset,deployment,configmap", "-n", namespace, "-o", "yaml"),
	}
	for _, p := range strings.Fields(kubectl(ctx, "get", "pod", "-n", namespace, "-o", "name")) {
		out, err := run(ctx, "", "kubectl", "logs", "-n", namespace, p, "--all-containers", "--tail=-1")
		if err == nil { // it may have gone
			places["log of "+p] = out
		}
	}
	for _, w := range workers(ctx) {
		places["files and arguments on "+w] = on(ctx, w, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; "+
			"find /var/lib/gemel -xdev -type f -not -path '*/mnt/*' -exec cat {} + 2>/dev/null; true")
	}
	for place, text := range places {
		for _, s := range secrets {
			Expect(strings.Contains(text, s)).To(BeFalse(), "a CHAP secret is in the "+place)
		}
	}
}
