package sim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Each step is taken once, in order, and on the object that it names.
func TestStepsOfASnapshot(t *testing.T) {
	for _, x := range []struct {
		name  string
		was   snap
		step  snapStep
		born  uint64
		res   scsi.Result
		stage snapStage
	}{
		{"prepare", snap{}, snapPrepare, 0, scsi.OK, stagePrepared},
		{"prepare where there is one", snap{Born: 3, Stage: stageReady}, snapPrepare, 0, scsi.Busy, stageReady},
		{"mark", snap{Born: 3, Stage: stagePrepared}, snapMark, 3, scsi.OK, stageMarked},
		{"mark another", snap{Born: 4, Stage: stagePrepared}, snapMark, 3, scsi.Busy, stagePrepared},
		{"mark twice", snap{Born: 3, Stage: stageMarked}, snapMark, 3, scsi.Busy, stageMarked},
		{"commit", snap{Born: 3, Stage: stageMarked}, snapCommit, 3, scsi.OK, stageReady},
		{"commit too early", snap{Born: 3, Stage: stagePrepared}, snapCommit, 3, scsi.Busy, stagePrepared},
		{"a late commit", snap{Born: 4, Stage: stageMarked}, snapCommit, 3, scsi.Busy, stageMarked},
		{"abort", snap{Born: 3, Stage: stageMarked}, snapAbort, 3, scsi.OK, stageNone},
		{"a late abort", snap{Born: 4, Stage: stageMarked}, snapAbort, 3, scsi.OK, stageMarked},
		{"abort what is ready", snap{Born: 3, Stage: stageReady}, snapAbort, 3, scsi.OK, stageReady},
		{"delete", snap{Born: 3, Stage: stageReady}, snapDelete, 3, scsi.OK, stageNone},
		{"a late delete", snap{Born: 4, Stage: stageReady}, snapDelete, 3, scsi.OK, stageReady},
	} {
		w := still()
		h := w.nodes[0]
		h.boot()
		h.disk.meta.Snaps[1] = x.was
		res := h.applySnap(&entry{Snap: 2, Step: x.step, Born: x.born}, 9, false)
		if s := h.disk.meta.Snaps[1]; res != x.res || s.Stage != x.stage || w.res.Err != nil {
			t.Errorf("%s: %v, %+v, %v", x.name, resultName(res), s, w.res.Err)
		}
	}
}

// A LUN has one object at a time that is marked and not ready.
func TestOneCopyOfALUN(t *testing.T) {
	w := still()
	h := w.nodes[0]
	h.boot()
	h.disk.meta.Snaps[0] = snap{Born: 3, Stage: stageMarked}
	h.disk.meta.Snaps[1] = snap{Born: 4, Stage: stagePrepared}
	mark := &entry{Snap: 2, Step: snapMark, Born: 4}
	if h.applySnap(mark, 9, false) != scsi.Busy {
		t.Fatal("two at a time")
	}
	h.disk.meta.Snaps[0].Stage = stageReady
	if h.applySnap(mark, 10, false) != scsi.OK {
		t.Fatal("the first one is ready")
	}
}

// A joiner believes what it has of a snapshot only if it was ready there.
func TestInstallationNamesWhatIsIncomplete(t *testing.T) {
	w := still()
	h := w.nodes[0]
	object := w.shape.luns
	for slot, own := range []snap{{Born: 3, Stage: stageReady}, {Born: 4, Stage: stageMarked}, {Born: 5, Stage: stageReady}} {
		h.disk.meta.Snaps[slot] = own
		h.disk.luns[object+slot][0].put(1, true)
	}
	m := h.disk.meta.clone()
	m.Snaps[1].Stage = stageReady
	m.Snaps[2].Born = 6
	h.replaceMeta(m)
	if c := h.disk.copying; c[0] || !c[1] || !c[2] || h.disk.luns[object+2][0].cache != 0 || h.disk.luns[object][0].cache != 1 {
		t.Fatalf("%v", c)
	}
	if objs := h.objects(); len(objs) != 4 {
		t.Fatalf("%v", objs)
	}
	h.disk.meta.Snaps[0].Stage = stagePrepared
	if objs := h.objects(); len(objs) != 3 {
		t.Fatalf("%v: what is prepared only is empty", objs)
	}
	if h.disk.exists(w.snapID(1, 3)) || !h.disk.exists(w.snapID(1, 4)) {
		t.Fatal("an object of a slot is not another one of it")
	}
}
