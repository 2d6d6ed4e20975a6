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
