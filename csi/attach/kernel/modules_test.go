package kernel

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A kernel that has a module in any way, or was built to, can have it; one that was not cannot.
func TestMissingModules(t *testing.T) {
	const release = "6.1.0-test"
	tree := "lib/modules/" + release + "/"
	dep := "kernel/drivers/scsi/iscsi_tcp.ko.xz: kernel/drivers/scsi/libiscsi.ko.xz\nkernel/drivers/scsi/device_handler/scsi_dh_alua.ko:\n"
	builtin := "kernel/drivers/md/dm-multipath.ko\n"
	config := "CONFIG_ISCSI_TCP=m\nCONFIG_DM_MULTIPATH=y\nCONFIG_SCSI_DH_ALUA=m\n"
	without := "# CONFIG_ISCSI_TCP is not set\nCONFIG_ISCSI_TCP_MORE=y\nCONFIG_DM_MULTIPATH=n\nCONFIG_DM_MULTIPATH_QL=m\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing is known":        {nil, modules},
		"loaded":                  {map[string]string{"sys/module/iscsi_tcp/x": "", "sys/module/dm_multipath/x": "", "sys/module/scsi_dh_alua/x": ""}, nil},
		"to be loaded":            {map[string]string{tree + "modules.dep": dep, tree + "modules.builtin": builtin}, nil},
		"one is not in the tree":  {map[string]string{tree + "modules.dep": dep}, []string{"dm_multipath"}},
		"another kernel's tree":   {map[string]string{"lib/modules/5.10.0/modules.dep": dep}, modules},
		"built, not installed":    {map[string]string{"boot/config-" + release: config}, nil},
		"built, says the kernel":  {map[string]string{"proc/config.gz": config}, nil},
		"another one's name":      {map[string]string{"boot/config-" + release: without}, modules},
		"without, but installed":  {map[string]string{"proc/config.gz": without, tree + "modules.dep": dep, tree + "modules.builtin": builtin}, nil},
		"damaged, but it is said": {map[string]string{"proc/config.gz": "", "boot/config-" + release: config}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range c.files {
				write(t, filepath.Join(root, path), content)
			}
			if got := missingModules(worker{proc: filepath.Join(root, "proc/1"), root: root}, release); !slices.Equal(got, c.want) {
				t.Errorf("missing %q, want %q", got, c.want)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".gz" && content != "" {
		z := gzip.NewWriter(f)
		_, err = z.Write([]byte(content))
		if err == nil {
			err = z.Close()
		}
	} else {
		_, err = f.WriteString(content)
	}
	if cerr := f.Close(); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
}
