package app

import (
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
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "rel", "--node-iqn", "me", "--attach", "kernel", "--io-deadline", "1ms", "--max-volumes", "-1"},
			[]string{"--state-dir", "--node-iqn", "--attach", "--io-deadline", "--max-volumes"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--pair-endpoint", "127.0.0.1:1", "--tls-cert", "x"}, []string{"--tls-cert"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--pair-endpoint", "192.0.2.1:1"}, []string{"loopback"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "crd"}, []string{"--backend"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "direct"}, []string{"--pair-endpoint"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "objects", "--pair-endpoint", "127.0.0.1:1"}, []string{"--pair-endpoint"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--backend", "objects"}, []string{"--kubeconfig"}},
		{[]string{"--endpoint", "/s", "--mode", "controller", "--kubeconfig", "/no/such/file"}, []string{"/no/such/file"}},
		{[]string{"--endpoint", "/s", "--mode", "node", "--state-dir", "/tmp/x", "--node-object"}, []string{"--node-name", "--kubeconfig"}},
		{[]string{"--log-level", "loud"}, []string{"log-level"}},
		{[]string{"--log-format", "xml"}, []string{"log-format"}},
		{[]string{"attach-holder"}, []string{"attach-holder"}},
	} {
		cmd := Command()
		cmd.SetArgs(c.args)
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			t.Fatalf("%v was taken", c.args)
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v does not name %s", c.args, err, w)
			}
		}
	}
}
