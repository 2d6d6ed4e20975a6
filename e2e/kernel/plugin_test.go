package kernel

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/vm"
)

// Where the plugin is in a guest.
const (
	pluginPath   = "/usr/local/bin/gemel-csi"
	pluginSocket = "/run/gemel-csi.sock"
	pluginLog    = "/var/log/gemel-csi.log"
	stateDir     = "/var/lib/gemel"
	kubeletDir   = "/var/lib/kubelet"
)

// worker is a guest with open-iscsi, multipathd and the node plugin.
type worker struct {
	*vm.Guest
	name  string
	rig   *rig
	iqn   string
	chap  *targetv1.CHAP
	enter []string // what the plugin's command line begins with
	pid   int
	conn  *grpc.ClientConn
	node  csi.NodeClient
	ident csi.IdentityClient
}

// daemons are what a distribution's service manager would have started.
const daemons = `set -e
mkdir -p /run/lock/iscsi ` + kubeletDir + `
modprobe dm_multipath # multipathd's service does, and multipathd ends without it
pidof iscsid >/dev/null || iscsid
pidof multipathd >/dev/null || multipathd
for i in $(seq 100); do multipathd show daemon >/dev/null 2>&1 && break; sleep 0.1; done`

// worker clones a guest and starts everything on it.
func (r *rig) worker(ctx context.Context, name string) (*worker, error) {
	g, err := r.guest(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &worker{Guest: g, name: name, rig: r, iqn: "iqn.2026-11.storage.gemel:node." + name}
	program, err := os.ReadFile(plugin)
	if err == nil {
		err = g.Put(ctx, pluginPath, 0o755, program)
	}
	if err == nil {
		_, err = g.Shell(ctx, daemons)
	}
	if err == nil {
		err = w.start(ctx)
	}
	if err == nil {
		_, err = g.Shell(ctx, "sync") // what is installed survives a restart of the machine
	}
	return w, err
}

// start runs the plugin and waits until it says that it is ready.
func (w *worker) start(ctx context.Context) (err error) {
	argv := append(append([]string{}, w.enter...), pluginPath, "--mode", "node", "--attach", "kernel", "--endpoint", "unix://"+pluginSocket,
		"--state-dir", stateDir, "--node-iqn", w.iqn, "--log-level", "debug")
	if w.pid, err = w.Start(ctx, guest.Command{Argv: argv, Log: pluginLog}); err != nil {
		return err
	}
	w.conn, err = grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.Dial(ctx, "unix", pluginSocket) }))
	if err != nil {
		return err
	}
	w.node, w.ident = csi.NewNodeClient(w.conn), csi.NewIdentityClient(w.conn)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		p, err := w.ident.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && p.Ready.GetValue() {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("plugin: %v, %w: %s", p, err, w.log())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// kill ends the plugin and its children at once, as the end of a container does.
func (w *worker) kill(ctx context.Context) error {
	_ = w.conn.Close()
	line := fmt.Sprintf(`kill -STOP %[1]d; tree() { for p in $(ps -o pid= --ppid $1); do tree $p; echo $p; done; }; kill -9 $(tree %[1]d) %[1]d`, w.pid)
	if _, err := w.Shell(ctx, line); err != nil {
		return err
	}
	for {
		if p, err := w.Look(ctx, w.pid); err != nil || !p.Running {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// log is the plugin's, for failures.
func (w *worker) log() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	text, _ := w.Get(ctx, pluginLog)
	return string(text)
}

// secrets are what the external attacher and kubelet would pass on.
func (w *worker) secrets() map[string]string {
	if w.chap == nil {
		return nil
	}
	return map[string]string{attach.SecretUser: w.chap.User, attach.SecretSecret: w.chap.Secret,
		attach.SecretMutualUser: w.chap.MutualUser, attach.SecretMutualSecret: w.chap.MutualSecret}
}

// volume is a LUN that is published to a worker.
type volume struct {
	id, wwid string
	lun      *targetv1.LUN
	portals  []*targetv1.Portal
	context  map[string]string
	cap      *csi.VolumeCapability
	w        *worker
	legs     []*volume // of a striped one; it has neither lun nor wwid
}

// create makes a LUN and publishes it; fs is empty for a raw volume.
func (w *worker) create(ctx context.Context, size uint64, owner, fs string) (*volume, error) {
	l, m, err := w.rig.lun(ctx, w.iqn, size, owner, w.chap)
	if err != nil {
		return nil, err
	}
	v := &volume{id: l.Uuid, lun: l, w: w, cap: &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}}}
	v.cap.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	if fs != "" {
		v.cap.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}
	}
	v.published(m)
	return v, nil
}

// published takes over what the pair said of the mapping.
func (v *volume) published(m *targetv1.Mapping) {
	a := attach.Attachment{VolumeID: v.id, Generation: m.Generation, HostIQN: m.HostIqn, TargetIQN: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, p := range m.Portals {
		a.Portals = append(a.Portals, p.Address)
	}
	v.wwid, v.portals, v.context = m.Wwid, m.Portals, a.PublishContext()
}

// republish fences the worker and maps the LUN again, as after the loss of contact with it.
func (v *volume) republish(ctx context.Context) error {
	c := v.w.rig.pair.Client(0)
	if _, err := c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.id, HostIqn: v.w.iqn}); err != nil {
		return err
	}
	m, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: v.id, HostIqn: v.w.iqn})
	if err == nil {
		v.published(m)
	}
	return err
}

func (v *volume) staging() string   { return kubeletDir + "/staging/" + v.id }
func (v *volume) path() string      { return kubeletDir + "/pods/" + v.id }
func (v *volume) lunNumber() string { return v.context[attach.KeyLUN] }

func (v *volume) device() string {
	if len(v.legs) > 0 {
		return "/dev/mapper/gemel-" + v.id
	}
	return "/dev/disk/by-id/dm-uuid-mpath-3" + v.wwid
}

func (v *volume) stage(ctx context.Context) error {
	_, err := v.w.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, PublishContext: v.context, StagingTargetPath: v.staging(),
		VolumeCapability: v.cap, Secrets: v.w.secrets()})
	return err
}

func (v *volume) publish(ctx context.Context) error {
	_, err := v.w.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.id, PublishContext: v.context, StagingTargetPath: v.staging(),
		TargetPath: v.path(), VolumeCapability: v.cap})
	return err
}

func (v *volume) unpublish(ctx context.Context) error {
	_, err := v.w.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.path()})
	return err
}

func (v *volume) unstage(ctx context.Context) error {
	_, err := v.w.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging()})
	return err
}

func (v *volume) expand(ctx context.Context, size uint64) (int64, error) {
	luns := []*volume{v}
	if len(v.legs) > 0 {
		luns = v.legs
	}
	for _, l := range luns {
		if _, err := l.w.rig.pair.Client(0).ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: l.id, SizeBytes: size / uint64(len(luns))}); err != nil {
			return 0, err
		}
	}
	r, err := v.w.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: v.path(), StagingTargetPath: v.staging(),
		CapacityRange: &csi.CapacityRange{RequiredBytes: int64(size)}, VolumeCapability: v.cap})
	return r.GetCapacityBytes(), err
}

// reasons are what the volume's health says.
func (v *volume) reasons(ctx context.Context) (out []string) {
	short, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	h, err := v.w.node.NodeGetVolumeHealth(short, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range h.VolumeHealth.HealthStatuses {
		out = append(out, e.Reason)
	}
	return out
}

// left is what a worker still has of our LUNs: nothing after the last unstage.
func (w *worker) left(ctx context.Context) (string, error) {
	out, err := w.Shell(ctx, `ls -d /sys/block/dm-* /sys/class/iscsi_session/* 2>/dev/null
grep -l GEMEL /sys/class/scsi_device/*/device/vendor 2>/dev/null
grep '^/3602474d' /etc/multipath/wwids 2>/dev/null
find /etc/iscsi/nodes -type f 2>/dev/null
ls -d `+stateDir+`/attach-kernel/* `+stateDir+`/staged/* 2>/dev/null
grep `+kubeletDir+` /proc/self/mounts
true`)
	return strings.TrimSpace(out), err
}
