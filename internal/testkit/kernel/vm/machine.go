// Package vm runs Linux guests in an emulator, as workers for tests: each is a clone of one saved
// machine and is there in a second or two. hack/vm makes what it needs. Everything is started in
// the caller's network namespace, which should be one of the test's own.
package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

// Hardware of all machines: a saved state can only be read into the same. The processor is an old
// one whose instructions are cheap to emulate.
const (
	processor = "Nehalem"
	cores     = "2"
	memory    = "1024" // MiB
)

// boot is the kernel's command line: no time for messages, mitigations or hardware that is not
// there.
const boot = "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 mitigations=off nokaslr tsc=reliable no_timer_check " +
	"random.trust_cpu=on audit=0 selinux=0 apparmor=0"

// Lab is the folder that hack/vm has filled.
type Lab struct{ Dir string }

func (l Lab) file(name string) string { return filepath.Join(l.Dir, name) }

// Files of the saved machine.
func (l Lab) savedDisk() string  { return l.file("template.qcow2") }
func (l Lab) savedState() string { return l.file("template.state") }

// Check says what is missing.
func (l Lab) Check() error {
	var errs []error
	for _, f := range []string{l.file("vmlinux"), l.file("initramfs.cpio"), l.savedDisk(), l.savedState()} {
		if _, err := os.Stat(f); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w (hack/vm/up.sh makes them)", errors.Join(errs...))
	}
	return nil
}

// machine is one running emulator.
type machine struct {
	dir     string
	cmd     *exec.Cmd
	ended   chan struct{}
	monitor *monitor
	agent   *guest.Client
}

// start runs an emulator on disk. wires are arguments of the guest's two storage networks; more are
// further arguments.
func (l Lab) start(ctx context.Context, dir, disk string, wires [2]string, more ...string) (*machine, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	port, err := freeport.On("127.0.0.1")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "qmp")
	_ = os.Remove(socket) // of the machine that was there before
	args := []string{"-accel", "tcg,thread=multi,tb-size=512", "-cpu", processor, "-smp", cores, "-m", memory,
		"-machine", "q35,usb=off,vmport=off", "-nodefaults", "-no-user-config", "-display", "none",
		"-kernel", l.file("vmlinux"), "-initrd", l.file("initramfs.cpio"), "-append", boot,
		"-serial", "file:" + filepath.Join(dir, "console"), "-device", "virtio-rng-pci",
		"-drive", "if=none,id=d0,format=qcow2,cache=unsafe,aio=threads,file=" + disk, "-device", "virtio-blk-pci,drive=d0",
		"-netdev", fmt.Sprintf("user,id=n0,net=10.0.2.0/24,restrict=on,hostfwd=tcp:127.0.0.1:%d-:%d", port, guest.Port),
		"-device", "virtio-net-pci,netdev=n0,romfile=",
		"-qmp", "unix:" + socket + ",server=on,wait=off"}
	for i, w := range wires {
		args = append(args, "-netdev", w, "-device", fmt.Sprintf("virtio-net-pci,netdev=s%d,romfile=", i))
	}
	log, err := os.Create(filepath.Join(dir, "emulator.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m := &machine{dir: dir, ended: make(chan struct{}), agent: guest.NewClient(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))}
	m.cmd = exec.Command("qemu-system-x86_64", append(args, more...)...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = m.cmd.Wait(); close(m.ended) }()
	if m.monitor, err = dialMonitor(ctx, socket, m.ended); err != nil {
		m.close()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return m, nil
}

// close ends the emulator, as pulling a machine's plug does.
func (m *machine) close() {
	if m.monitor != nil {
		m.monitor.close()
	}
	_ = m.cmd.Process.Kill()
	<-m.ended
}

// overlay makes a disk that begins as another one and leaves that alone.
func overlay(ctx context.Context, disk, of, format string) error {
	out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-b", of, "-F", format, disk).CombinedOutput()
	if err != nil {
		return fmt.Errorf("qemu-img: %w: %s", err, out)
	}
	return nil
}

// waitReady bounds how long a guest may take to start.
func (m *machine) waitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	go func() {
		select {
		case <-m.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := m.agent.WaitReady(ctx); err != nil {
		console, _ := os.ReadFile(filepath.Join(m.dir, "console"))
		return fmt.Errorf("%w; its console: %s", err, console[max(0, len(console)-2000):])
	}
	return nil
}
