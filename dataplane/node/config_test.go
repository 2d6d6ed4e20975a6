package node

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func goodConfig() Config {
	return Config{Cluster: "c", Pair: "p", Node: "a", StateDir: "/x", Arbiter: "file:/x/r", ISCSIListen: []string{"127.0.0.1:3260"},
		Portals: []string{"a=10.0.0.1:3260", "b=10.0.0.2:3260"}, LinkListen: "127.0.0.1:1", ControlListen: "127.0.0.1:2"}
}

func TestValidateNamesEveryBadValue(t *testing.T) {
	good := goodConfig()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		field  string
	}{
		"no cluster":             {func(c *Config) { c.Cluster = "" }, "cluster"},
		"upper case":             {func(c *Config) { c.Cluster = "Prod" }, `"Prod"`},
		"pair with a dot":        {func(c *Config) { c.Pair = "p.0" }, "pair"},
		"third node":             {func(c *Config) { c.Node = "c" }, "node"},
		"no state dir":           {func(c *Config) { c.StateDir = "" }, "state-dir"},
		"arbiter of no kind":     {func(c *Config) { c.Arbiter = "/x/r" }, "arbiter"},
		"arbiter without path":   {func(c *Config) { c.Arbiter = "file:" }, "arbiter"},
		"lease without a name":   {func(c *Config) { c.Arbiter = "lease:gemel" }, "NAMESPACE/NAME"},
		"lease of no name":       {func(c *Config) { c.Arbiter = "lease:gemel/P0" }, "arbiter"},
		"kubeconfig for a file":  {func(c *Config) { c.Kubeconfig = "/k" }, "kubeconfig"},
		"servers for a file":     {func(c *Config) { c.ArbiterEndpoints = []string{"https://h:1"} }, "arbiter-endpoint"},
		"server without scheme":  {func(c *Config) { c.Arbiter, c.ArbiterEndpoints = "lease:g/p", []string{"h:1"} }, "https://HOST:PORT"},
		"no portal to serve":     {func(c *Config) { c.ISCSIListen = nil }, "iscsi-listen"},
		"address without port":   {func(c *Config) { c.ISCSIListen = []string{"127.0.0.1"} }, "iscsi-listen"},
		"no control API":         {func(c *Config) { c.ControlListen = "" }, "control-listen"},
		"open control API":       {func(c *Config) { c.ControlListen = "0.0.0.0:2" }, "loopback"},
		"open link":              {func(c *Config) { c.LinkListen = ":2" }, "loopback"},
		"link by name":           {func(c *Config) { c.LinkListen = "storage-a:2" }, "loopback"},
		"node a without link":    {func(c *Config) { c.LinkListen = "" }, "link-listen"},
		"node b without peer":    {func(c *Config) { c.Node = "b" }, "link-peer"},
		"portal of nobody":       {func(c *Config) { c.Portals = append(c.Portals, "c=1.2.3.4:5") }, "portal"},
		"portal without node":    {func(c *Config) { c.Portals = append(c.Portals, "1.2.3.4:5") }, "portal"},
		"portals of one node":    {func(c *Config) { c.Portals = c.Portals[:1] }, "each node needs"},
		"key without the rest":   {func(c *Config) { c.TLSKey = "/k" }, "tls-cert"},
		"lease too short":        {func(c *Config) { c.Lease = Duration(time.Millisecond) }, "lease"},
		"lease too long":         {func(c *Config) { c.Lease = Duration(time.Hour) }, "lease"},
		"negative lease":         {func(c *Config) { c.Lease = -1 }, "lease"},
		"preferred node unknown": {func(c *Config) { c.Preferred = "x" }, "preferred-node"},
		"volume without name":    {func(c *Config) { c.BackingVolumes = []string{"/data"} }, "backing-volume"},
		"volume of a bad name":   {func(c *Config) { c.BackingVolumes = []string{"Fast=/data"} }, "backing-volume"},
		"volume twice":           {func(c *Config) { c.BackingVolumes = []string{"f=/data", "f=/other"} }, "used twice"},
		"no id of a lost volume": {func(c *Config) { c.LostVolumes = []string{"p/a"} }, "lost-volume"},
		"member twice":           {func(c *Config) { c.BackingVolumes = []string{"f/a=/data", "f/a=/other"} }, "used twice"},
		"volume in the state":    {func(c *Config) { c.BackingVolumes = []string{"f=" + c.StateDir + "/f"} }, "backing volume default"},
		"metrics address":        {func(c *Config) { c.MetricsListen = "x" }, "metrics-listen"},
		"open supervisor":        {func(c *Config) { c.SupervisorListen = "0.0.0.0:2" }, "supervisor-listen"},
		"supervisor elsewhere":   {func(c *Config) { c.PeerSupervisor = "10.0.0.1:2" }, "peer-supervisor"},
		"profiles nowhere":       {func(c *Config) { c.MetricsListen, c.Profiling = "", true }, "profiling"},
	} {
		cfg := goodConfig()
		c.change(&cfg)
		err := cfg.Validate()
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v does not name %s", name, err, c.field)
		}
		if _, nerr := New(cfg); nerr == nil || nerr.Error() != err.Error() {
			t.Errorf("%s: New: %v", name, nerr)
		}
	}
	all := Config{}
	err := all.Validate()
	for _, f := range []string{"cluster", "pair", "node", "state-dir", "arbiter", "iscsi-listen", "control-listen", "portal"} {
		if !strings.Contains(err.Error(), f) {
			t.Errorf("everything is missing, but %s is not named: %v", f, err)
		}
	}
}

func TestDurationIsTextInConfig(t *testing.T) {
	var d Duration
	if err := d.UnmarshalText([]byte("250ms")); err != nil || d != Duration(250*time.Millisecond) {
		t.Fatal(d, err)
	}
	if b, err := d.MarshalText(); err != nil || string(b) != "250ms" {
		t.Fatal(string(b), err)
	}
	if d.UnmarshalText([]byte("soon")) == nil {
		t.Fatal("no duration")
	}
}
