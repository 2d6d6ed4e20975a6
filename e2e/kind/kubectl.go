package kind

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// root of the repository.
var root = harness.Root()

// run starts a command and gives its output; an error has what it said.
func run(ctx context.Context, stdin string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// kubectl runs kubectl, which has to succeed.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := run(ctx, "", "kubectl", args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// apply gives manifests to kubectl.
func apply(ctx context.Context, namespace, manifest string) {
	GinkgoHelper()
	_, err := run(ctx, manifest, "kubectl", "apply", "-n", namespace, "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}

// field reads one field by jsonpath; nothing if the object is not there.
func field(ctx context.Context, kind, name, namespace, path string) string {
	args := []string{"get", kind, name, "-o", "jsonpath=" + path, "--ignore-not-found"}
	if namespace != "" {
		args = append(args, "-n", namespace)
	}
	out, err := run(ctx, "", "kubectl", args...)
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}

// condition of an object, by type.
func condition(ctx context.Context, kind, name, namespace, cond string) string {
	return field(ctx, kind, name, namespace, fmt.Sprintf(`{.status.conditions[?(@.type=="%s")].status}`, cond))
}

// newNamespace is a namespace for one spec; it goes with all that is in it.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	name := fmt.Sprintf("e2e-%d", time.Now().UnixNano()%1_000_000_000)
	kubectl(ctx, "create", "namespace", name)
	DeferCleanup(func(ctx context.Context) {
		if CurrentSpecReport().Failed() { // what may tell why was kept; its pods are not to disturb the specs after it
			kubectl(ctx, "delete", "namespace", name, "--wait=false")
			return
		}
		kubectl(ctx, "delete", "namespace", name, "--wait=true", "--timeout=180s")
	}, NodeTimeout(4*time.Minute))
	return name
}

var unsafe = regexp.MustCompile(`[^a-z0-9]+`)

// diagnose keeps what may tell why a spec failed.
func diagnose(ctx context.Context, spec string) {
	dir := filepath.Join(root, "out", "e2e-failures", strings.Trim(unsafe.ReplaceAllString(strings.ToLower(spec), "-"), "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		GinkgoWriter.Println("diagnostics:", err)
		return
	}
	keep := func(name string, args ...string) {
		out, err := run(ctx, "", "kubectl", append(args, "--request-timeout=5s")...)
		if err != nil {
			out += "\n" + err.Error()
		}
		_ = os.WriteFile(filepath.Join(dir, name), []byte(out+"\n"), 0o644)
	}
	keep("gemel.txt", "get", "storagecluster,targetpair,logicalunit,logicalunitsnapshot,logicalunitgroupsnapshot,host", "-o", "yaml")
	keep("pods.txt", "get", "pods", "-A", "-o", "wide")
	keep("volumes.txt", "get", "pv,pvc,volumeattachment,csinode", "-A", "-o", "wide")
	keep("events.txt", "get", "events", "-A", "--sort-by=.lastTimestamp")
	keep("leases.txt", "get", "leases", "-n", namespace, "-o", "yaml")
	pods, _ := run(ctx, "", "kubectl", "get", "pods", "-n", namespace, "-o", "name")
	for _, p := range strings.Fields(pods) {
		name := strings.TrimPrefix(p, "pod/")
		keep(name+".log", "logs", "-n", namespace, name, "--all-containers", "--tail=2000")
		keep(name+".previous.log", "logs", "-n", namespace, name, "--all-containers", "--previous", "--tail=500")
	}
	fmt.Fprintf(GinkgoWriter, "diagnostics are in %s\n", dir)
}
