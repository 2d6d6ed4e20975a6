package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Reports of attachments use the records that can be read; steps on what attachments share need all
// records.
func TestEntries(t *testing.T) {
	_, a, want := setup(t)
	second := attachment("v2", 6, 4, wwid2)
	for _, r := range []record{{Version: 1, Attachment: want, CHAP: true}, {Version: 1, Attachment: second, Partial: true}} {
		if err := a.save(&r); err != nil {
			t.Fatal(err)
		}
	}
	all, err := a.all()
	if err != nil || len(all) != 2 || all[0].goal.volume != "v1" || !all[0].goal.noSecrets || !all[1].record.Partial || all[1].goal.noSecrets {
		t.Fatal(all, err)
	}
	if o := besides(all, "v1"); len(o) != 1 || o[0].volume != "v2" {
		t.Error(o)
	}
	if o := besides(all, "v3"); len(o) != 2 {
		t.Error(o)
	}
	later, lost := second, second
	later.VolumeID, lost.VolumeID, lost.WWID = "v4", "v5", "?"
	err = errors.Join(os.WriteFile(filepath.Join(a.cfg.Dir, "v3.json"), []byte("{"), 0o600),
		a.save(&record{Version: attach.MaxRecordVersion + 1, Attachment: later}), a.save(&record{Version: 1, Attachment: lost}))
	if err != nil {
		t.Fatal(err)
	}
	read, unread, err := a.entries()
	if err != nil || len(read) != 2 || len(unread) != 3 || !errors.Is(unread[2], attach.ErrInvalid) {
		t.Error(read, unread, err)
	}
	for _, bad := range []string{"v3", "v4", "v5"} {
		if all, err := a.all(); err == nil {
			t.Errorf("%s was passed over: %v", bad, all)
		}
		if err := a.forget(bad); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := a.all(); err != nil || len(all) != 2 {
		t.Error(all, err)
	}
}
