package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/csi/controller"
	"github.com/gemel-storage/gemel/csi/identity"
	"github.com/gemel-storage/gemel/csi/node"
)

// declaration is the part of testdriver.yaml that can be wrong.
type declaration struct {
	VolumeAttributesClass *struct{ FromExistingClassName, FromFile string }
	GroupSnapshotClass    *struct{ FromExistingClassName string }
	DriverInfo            struct {
		Name               string
		SupportedSizeRange struct{ Min string }
		SupportedFsType    map[string]struct{}
		Capabilities       map[string]bool
	}
}

// advertised is what the driver itself advertises over the CSI calls.
type advertised map[string]bool

func advertisedBy(t *testing.T) advertised {
	t.Helper()
	a := advertised{}
	c, err := controller.New(nil, nil).ControllerGetCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range c.GetCapabilities() {
		a["controller "+x.GetRpc().GetType().String()] = true
	}
	n, err := (&node.Server{}).NodeGetCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range n.GetCapabilities() {
		a["node "+x.GetRpc().GetType().String()] = true
	}
	p, err := (&identity.Server{Controller: true, Groups: objects.New(nil).GroupSnapshots()}).GetPluginCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range p.GetCapabilities() {
		if s := x.GetService(); s != nil {
			a["plugin "+s.GetType().String()] = true
		}
		if e := x.GetVolumeExpansion(); e != nil {
			a["plugin expansion "+e.GetType().String()] = true
		}
	}
	return a
}

func serves(mode csi.VolumeCapability_AccessMode_Mode, block bool) bool {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	_, err := capability.Parse(c)
	return err == nil
}

func repositoryFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The declaration must have every capability that the driver has, and no other.
func TestTheDeclarationIsWhatTheDriverAdvertises(t *testing.T) {
	var d declaration
	if err := yaml.Unmarshal([]byte(repositoryFile(t, "hack/storagesuite/testdriver.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	a := advertisedBy(t)
	csiDriver := repositoryFile(t, "charts/gemel/templates/driver.yaml")
	sidecars := repositoryFile(t, "config/manager/csi-controller.yaml")
	var values struct{ Node struct{ MaxVolumes int } }
	if err := yaml.Unmarshal([]byte(repositoryFile(t, "charts/gemel/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		// What every volume is: a LUN with a filesystem of its own, that outlives pods, mounted
		// without noexec, known by its handle alone.
		"persistence": true, "exec": true, "multipods": true, "multiplePVsSameID": true, "singleNodeVolume": false,
		// The driver has it: the tests of topology have a declaration of their own, because with it
		// the other tests would be fewer.
		"topology": false,
		// Stage grows the filesystem of what was restored or cloned larger than its source.
		"FSResizeFromSourceNotSupported": false,

		"block":           serves(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true),
		"RWX":             serves(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, true),
		"capReadOnlyMany": serves(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, false),
		"readWriteOncePod": a["controller SINGLE_NODE_MULTI_WRITER"] && a["node SINGLE_NODE_MULTI_WRITER"] &&
			serves(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, false),
		"fsGroup":             strings.Contains(csiDriver, "fsGroupPolicy: File"),
		"seLinuxMount":        strings.Contains(csiDriver, "seLinuxMount: true"),
		"volumeMountGroup":    a["node VOLUME_MOUNT_GROUP"],
		"volumeLimits":        values.Node.MaxVolumes > 0,
		"controllerExpansion": a["controller EXPAND_VOLUME"],
		"nodeExpansion":       a["node EXPAND_VOLUME"],
		"onlineExpansion":     a["plugin expansion ONLINE"],
		"offlineExpansion":    a["controller EXPAND_VOLUME"], // ONLINE has both (CSI, VolumeExpansion)
		"snapshotDataSource":  a["controller CREATE_DELETE_SNAPSHOT"],
		"pvcDataSource":       a["controller CLONE_VOLUME"],
		"groupSnapshot":       a["plugin GROUP_CONTROLLER_SERVICE"],
		"snapshotMetadata":    a["plugin SNAPSHOT_METADATA_SERVICE"],
		// The chart's class binds immediately. The provisioner publishes capacity for such a class
		// only with a flag.
		"capacity": a["controller GET_CAPACITY"] && a["plugin VOLUME_ACCESSIBILITY_CONSTRAINTS"] &&
			strings.Contains(sidecars, "- --enable-capacity\n") && strings.Contains(sidecars, "- --capacity-for-immediate-binding\n"),
	}
	got := d.DriverInfo.Capabilities
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if declared, ok := got[name]; !ok || declared != want[name] {
			t.Errorf("testdriver.yaml: %s is %v (there: %v), the driver says %v", name, declared, ok, want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("testdriver.yaml: nothing tells whether the driver has %s: say it here", name)
		}
	}
	if modify := a["controller MODIFY_VOLUME"]; modify != (d.VolumeAttributesClass != nil) {
		t.Errorf("the driver advertises MODIFY_VOLUME: %v, testdriver.yaml has a VolumeAttributesClass: %v", modify, d.VolumeAttributesClass != nil)
	}
	// Without a class the suite skips its tests; without the chart's value the lab has no class.
	var lab struct {
		Sidecars struct{ GroupSnapshots bool }
	}
	if err := yaml.Unmarshal([]byte(repositoryFile(t, "hack/kind/values.yaml")), &lab); err != nil {
		t.Fatal(err)
	}
	if groups := a["plugin GROUP_CONTROLLER_SERVICE"]; groups != (d.GroupSnapshotClass != nil) || groups != lab.Sidecars.GroupSnapshots {
		t.Errorf("the driver has group snapshots: %v, testdriver.yaml a VolumeGroupSnapshotClass: %v, the lab's values: %v", groups, d.GroupSnapshotClass != nil, lab.Sidecars.GroupSnapshots)
	}
	if d.DriverInfo.Name != identity.DriverName {
		t.Errorf("testdriver.yaml: name %q, the driver is %q", d.DriverInfo.Name, identity.DriverName)
	}
	filesystems := append([]string{""}, capability.Filesystems...) // "": the class's default
	slices.Sort(filesystems)
	if have := slices.Sorted(maps.Keys(d.DriverInfo.SupportedFsType)); !slices.Equal(have, filesystems) {
		t.Errorf("testdriver.yaml: filesystems %q, the driver has %q", have, filesystems)
	}
	if least, err := resource.ParseQuantity(d.DriverInfo.SupportedSizeRange.Min); err != nil || least.Value() != capability.MinXFS {
		t.Errorf("testdriver.yaml: least size %v (%v), the driver has %d bytes", &least, err, capability.MinXFS)
	}
}
