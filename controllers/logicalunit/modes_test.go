package logicalunit

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The status of a LUN shows the attach mode of each host, from its Host object; nothing depends on
// the object.
func TestAttachModeIsShown(t *testing.T) {
	f := setup(t, hosts(strings.ToUpper(chapHost)))
	shows := func(want string) {
		t.Helper()
		lu, _, err := f.look()
		if err != nil || len(lu.Status.Hosts) != 1 || lu.Status.Hosts[0].AttachMode != want || condition(lu, "Published") != "True Ready" {
			t.Fatalf("want %q: %+v, %v", want, lu.Status, err)
		}
	}
	shows("")
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.HostSpec{IQN: strings.ToUpper(chapHost), AttachMode: "Kernel"}}
	other := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.HostSpec{IQN: chapHost + "b", AttachMode: "Userspace"}}
	for _, o := range []*v1alpha1.Host{h, other} {
		if err := f.c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.r.lunsOfHost(t.Context(), h)); n != 1 {
		t.Errorf("a LUN of the host is not enqueued: %d", n)
	}
	shows("Kernel")
	if n := len(f.r.lunsOfHost(t.Context(), h)) + len(f.r.lunsOfHost(t.Context(), other)); n != 0 {
		t.Errorf("enqueued although nothing has changed: %d", n)
	}
	h.Spec.AttachMode = "Userspace"
	if err := f.c.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	shows("Userspace")
	if err := f.c.Delete(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	shows("Userspace")
}

// The pair is told of a profile that is set, once for each change, and of its end.
func TestProfileIsToldOnce(t *testing.T) {
	f := setup(t, hosts(chapHost))
	told := func(want string, calls int) {
		t.Helper()
		for range 2 {
			lu, _, err := f.look()
			if err != nil || lu.Status.Hosts[0].Profile != want || f.profile != want || strings.Count(strings.Join(f.calls, " "), "map ") != calls {
				t.Fatalf("want %q: %+v, %q, %v, %v", want, lu.Status.Hosts, f.profile, f.calls, err)
			}
			calls = 0
		}
	}
	told("", 1)
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.HostSpec{IQN: chapHost, AttachMode: "Kernel", Profile: "Auto"}}
	if err := f.c.Create(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	told("", 0)
	for _, profile := range []string{"QEMU", "Linux", "Auto"} {
		h.Spec.Profile = profile
		if err := f.c.Update(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if n := len(f.r.lunsOfHost(t.Context(), h)); n != 1 {
			t.Errorf("%s: %d LUNs are enqueued", profile, n)
		}
		told(strings.TrimPrefix(profile, "Auto"), 1)
	}
}
