package tierview

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

func TestVolume(t *testing.T) {
	var b strings.Builder
	Volume(&b, &targetv1.TieredVolume{Volume: "pool", Wait: durationpb.New(4 * time.Minute), Reason: "no member of tier fast has room",
		Fast:     &targetv1.TierUse{CapacityBytes: 1 << 30, FreeBytes: 1 << 29, Extents: 64, Reads: 900, ReadTimeUs: 90_000, ReadUs: 110},
		Capacity: &targetv1.TierUse{CapacityBytes: 10 << 30, FreeBytes: 9 << 30, Extents: 512, Reads: 100, ReadTimeUs: 810_000, ReadUs: 8_050, Writes: 7}})
	want := `  TIER            SIZE       FREE    EXTENTS   READ IN    READS TIME OF READS   WRITES
  fast         1.0 GiB  512.0 MiB         64   0.11 ms   90.0 %       10.0 %    0.0 %
  capacity    10.0 GiB    9.0 GiB        512   8.05 ms   10.0 %       90.0 %  100.0 %
  moves have not paid lately: an extent has to be used much for 4m0s before it moves
  no member of tier fast has room
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	Volume(&b, &targetv1.TieredVolume{Volume: "pool", Fast: &targetv1.TierUse{}, Capacity: &targetv1.TierUse{}})
	if lines := strings.Split(b.String(), "\n"); len(lines) != 4 || !strings.HasSuffix(lines[1], " -        -            -        -") {
		t.Errorf("of a volume that nobody has used: %q", lines)
	}
}

func TestMove(t *testing.T) {
	for want, m := range map[string]*targetv1.TierMove{
		"moved extent 7 of LUN x to fast: it is used enough (at least 2.5 accesses a second)":                    {Extent: 7, Lun: "x", To: "fast", Reason: "heat", Rate: 2.5},
		"would move extent 7 of LUN x to capacity: another one takes its place (at most 36 accesses an hour)":    {Extent: 7, Lun: "x", To: "capacity", Reason: "make room", Rate: 0.01, Observed: true},
		"moved extent 0 of LUN y to fast: it is used much more than another one (at least 12 accesses a second)": {Lun: "y", To: "fast", Reason: "displace", Rate: 12.2},
		"moved extent 0 of LUN y to capacity: a reason of a later release (at most 0 accesses an hour)":          {Lun: "y", To: "capacity", Reason: "a reason of a later release"},
	} {
		if got := Move(m); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHeat(t *testing.T) {
	var b strings.Builder
	h := &targetv1.LUNHeat{Lun: "x", Pin: "none", Extents: 256}
	for _, r := range []float64{0, 0.0001, 1, 4, 16, 0.9} {
		h.Parts = append(h.Parts, &targetv1.HeatPart{Rate: r})
	}
	h.Parts[4].Fast, h.Parts[3].Fast, h.Parts[2].Fast = 1, 0.5, 0.1
	Heat(&b, h)
	want := `LUN x, 1.0 GiB, pinned to none
  used       ▁▆▇█▆  most: 16 accesses a second
  on fast     ▁▄█
`
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	Heat(&b, &targetv1.LUNHeat{Lun: "x", Pin: "fast", Parts: []*targetv1.HeatPart{{}, {}}})
	if !strings.Contains(b.String(), "most: 0 accesses an hour") {
		t.Errorf("of a LUN that nobody uses: %q", b.String())
	}
}
