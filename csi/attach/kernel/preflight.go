package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Lack is something that a worker misses, and the command that fixes it.
type Lack struct{ What, Fix string }

func (l Lack) String() string { return l.What + ": " + l.Fix }

// ErrLacks: the worker cannot attach LUNs as it is.
var ErrLacks = errors.New("this worker cannot attach volumes")

// packages in the words of the families of distributions.
const packages = "apt-get install open-iscsi multipath-tools, or dnf install iscsi-initiator-utils device-mapper-multipath"

var tools = []string{"iscsiadm", "multipath", "multipathd", "dmsetup"}

var modules = []string{"iscsi_tcp", "dm_multipath", "scsi_dh_alua"}

// Sockets of the daemons, as /proc/net/unix shows them. With socket activation they are there
// before the daemon.
var daemons = []struct{ name, socket, fix string }{
	{"iscsid", "ISCSIADM_ABSTRACT_NAMESPACE", "systemctl enable --now iscsid.socket (or iscsid)"},
	{"multipathd", "/org/kernel/linux/storage/multipathd", "systemctl enable --now multipathd (on Red Hat and its kin first: mpathconf --enable)"},
}

// checkEvery is how long an answer of Check holds.
const checkEvery = 5 * time.Second

// Check puts our part of the worker's configuration in place and says what is missing besides; the
// error lists all of it, in words for the administrator. It is cheap to call often.
func (a *Attacher) Check(ctx context.Context) error {
	l, ok := a.host.(*linux)
	if !ok {
		return nil
	}
	a.checkMu.Lock()
	defer a.checkMu.Unlock()
	if time.Since(a.checked) < checkEvery {
		return a.lacks
	}
	list, err := l.preflight(ctx, a.cfg.Deadline)
	if len(list) > 0 {
		var words []string
		for _, x := range list {
			words = append(words, x.String())
		}
		err = errors.Join(fmt.Errorf("%w: %s", ErrLacks, strings.Join(words, "; ")), err)
	}
	a.checked, a.lacks = time.Now(), err
	return err
}

// Clean removes our part of the worker's configuration. Refused while anything is attached.
func (a *Attacher) Clean(ctx context.Context) error {
	ids, err := a.Attached()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("%d volumes are attached: %s", len(ids), strings.Join(ids, ", "))
	}
	if l, ok := a.host.(*linux); ok {
		err := os.Remove(l.ifacePath())
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return errors.Join(err, l.removeDropIn(ctx))
	}
	return nil
}

// preflight goes from the ground up: what is missing further down is not asked for further up.
func (l *linux) preflight(ctx context.Context, deadline time.Duration) (out []Lack, err error) {
	if os.Geteuid() != 0 {
		return []Lack{{"root", "run the node plugin as root (privileged)"}}, nil
	}
	if len(l.enter) > 0 {
		if _, err := exec.LookPath("nsenter"); err != nil {
			return []Lack{{"nsenter (in the plugin's image)", "use an image with util-linux"}}, nil
		}
	}
	var missing []string
	for _, t := range tools {
		if !l.hasTool(t) {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 {
		return []Lack{{strings.Join(missing, ", "), packages}}, nil
	}
	for _, m := range modules {
		if _, err := os.Stat(l.path("/sys/module", m)); err == nil {
			continue
		}
		if _, err := l.run(ctx, toolLimit, "modprobe", m); err != nil { // one that is built in is no error
			out = append(out, Lack{"the kernel module " + m, "modprobe " + m + " (install the package with the kernel's extra modules if there is none)"})
		}
	}
	if _, err := os.Stat(l.path("/run/udev/control")); err != nil {
		out = append(out, Lack{"udev", "systemctl enable --now systemd-udevd"})
	}
	sockets, err := os.ReadFile(l.proc + "/net/unix")
	if err != nil {
		return out, err
	}
	running := map[string]bool{}
	for _, d := range daemons {
		if running[d.name] = strings.Contains(string(sockets), d.socket); !running[d.name] {
			out = append(out, Lack{d.name + " does not run", d.fix})
		}
	}
	want, err := l.installDropIn(ctx, deadline)
	if err != nil {
		return append(out, Lack{fmt.Sprintf("Gemel's part of the multipath configuration: %v", err), "make /etc/multipath/conf.d writable"}), nil
	}
	if !running["multipathd"] {
		return out, nil
	}
	text, err := l.run(ctx, toolLimit, "multipathd", "show", "config")
	if err != nil {
		return append(out, Lack{fmt.Sprintf("multipathd does not answer (%v)", err), "systemctl restart multipathd"}), nil
	}
	return append(out, verifyConfig(parseConfig(text), want)...), nil
}

func (l *linux) hasTool(name string) bool {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if _, err := os.Lstat(l.path(dir, name)); err == nil {
			return true
		}
	}
	return false
}
