package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestBadFlagsAreNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"--endpoint", "--pair-endpoint", "--state-dir"}},
		{[]string{"--endpoint", "tcp://x", "--mode", "both"}, []string{"--endpoint", "--mode"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "rel", "--node-iqn", "me", "--attach", "magic", "--io-deadline", "1ms", "--no-lun-after", "1ms", "--max-volumes", "-1"},
			[]string{"--state-dir", "--node-iqn", "--attach", "--io-deadline", "--no-lun-after", "--max-volumes"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--max-volumes", "16385"}, []string{"--max-volumes", "16384"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--pair-endpoint", "127.0.0.1:1", "--tls-cert", "x"}, []string{"--tls-cert"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--pair-endpoint", "192.0.2.1:1"}, []string{"loopback"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "crd"}, []string{"--backend"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "direct"}, []string{"--pair-endpoint"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "objects", "--pair-endpoint", "127.0.0.1:1"}, []string{"--pair-endpoint"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "objects"}, []string{"--kubeconfig"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--kubeconfig", "/no/such/file"}, []string{"/no/such/file"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--node-object"}, []string{"--node-name", "--kubeconfig"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--enroll-token", "/t"}, []string{"--enroll-endpoint"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--enroll-endpoint", "operator", "--enroll-ca", "ca"}, []string{"--enroll-endpoint", "--enroll-ca", "--enroll-token"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--attach", "kernel", "--host-proc", "proc"}, []string{"--host-proc"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--attach", "auto", "--host-proc", "proc"}, []string{"--host-proc"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--attach", ""}, []string{"--attach", "kernel, userspace or auto"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--topology-keys", "rack"}, []string{"--topology-keys", "--node-object"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--node-object", "--topology-keys", "rack,a b"}, []string{"--topology-keys", `"a b"`, "label"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--node-object", "--topology-keys", "kubernetes.io/hostname"}, []string{"--topology-keys", "kubernetes.io/hostname", "remove it"}},
		{[]string{"worker-clean", "--state-dir", "x"}, []string{"--state-dir"}},
		{[]string{"--log-level", "loud"}, []string{"log-level"}},
		{[]string{"--log-format", "xml"}, []string{"log-format"}},
		{[]string{"attach-holder"}, []string{"attach-holder"}},
	} {
		cmd := Command()
		cmd.SetArgs(c.args)
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			t.Fatalf("%v was accepted", c.args)
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v does not name %s", c.args, err, w)
			}
		}
	}
}

// The limit for the scheduler is at most what the machine can hold.
func TestMostLUNsAreAtMostWhatTheMachineHolds(t *testing.T) {
	for _, c := range []struct{ requested, can, want int64 }{{0, 300, 300}, {128, 300, 128}, {300, 300, 300}, {128, 60, 60}, {0, 1 << 20, 16384}, {16384, 1 << 20, 16384}} {
		var log bytes.Buffer
		if got := mostLUNs(c.requested, c.can, "memory", slog.New(slog.NewTextHandler(&log, nil))); got != c.want || (c.requested > c.can) != strings.Contains(log.String(), "by=memory") {
			t.Errorf("%+v: %d, %s", c, got, &log)
		}
	}
}
