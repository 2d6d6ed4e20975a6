package controller

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/internal/stripe"
)

func TestStripingOfAClass(t *testing.T) {
	for name, c := range map[string]struct {
		params map[string]string
		want   stripe.Layout
		says   string
	}{
		"nothing":           {map[string]string{}, stripe.Layout{}, ""},
		"empty":             {map[string]string{"luns": "", "stripeSize": ""}, stripe.Layout{}, ""},
		"few operations":    {map[string]string{"iops": "50000"}, stripe.Layout{}, ""},
		"many operations":   {map[string]string{"iops": "200000"}, stripe.Layout{Count: 4, Size: 256 << 10}, ""},
		"most operations":   {map[string]string{"iops": "800000", "stripeSize": "1Mi"}, stripe.Layout{Count: 16, Size: 1 << 20}, ""},
		"no operations":     {map[string]string{"iops": "0"}, stripe.Layout{}, "iops"},
		"too many of them":  {map[string]string{"iops": "800001"}, stripe.Layout{}, "iops"},
		"words":             {map[string]string{"iops": "200k"}, stripe.Layout{}, "iops"},
		"both":              {map[string]string{"iops": "200000", "luns": "4"}, stripe.Layout{}, "iops"},
		"stripe of few":     {map[string]string{"iops": "50000", "stripeSize": "64Ki"}, stripe.Layout{}, "stripeSize"},
		"one LUN":           {map[string]string{"luns": "1"}, stripe.Layout{}, ""},
		"default stripe":    {map[string]string{"luns": "4"}, stripe.Layout{Count: 4, Size: 256 << 10}, ""},
		"its own":           {map[string]string{"luns": "16", "stripeSize": "1Mi"}, stripe.Layout{Count: 16, Size: 1 << 20}, ""},
		"in bytes":          {map[string]string{"luns": "2", "stripeSize": "65536"}, stripe.Layout{}, "stripeSize"},
		"none":              {map[string]string{"luns": "0"}, stripe.Layout{}, "luns"},
		"too many":          {map[string]string{"luns": "17"}, stripe.Layout{}, "luns"},
		"no number":         {map[string]string{"luns": "four"}, stripe.Layout{}, "luns"},
		"negative":          {map[string]string{"luns": "-2"}, stripe.Layout{}, "luns"},
		"no power of two":   {map[string]string{"luns": "4", "stripeSize": "96Ki"}, stripe.Layout{}, "stripeSize"},
		"too small":         {map[string]string{"luns": "4", "stripeSize": "4Ki"}, stripe.Layout{}, "stripeSize"},
		"too large":         {map[string]string{"luns": "4", "stripeSize": "2Mi"}, stripe.Layout{}, "stripeSize"},
		"no size":           {map[string]string{"luns": "4", "stripeSize": "large"}, stripe.Layout{}, "stripeSize"},
		"spread of one LUN": {map[string]string{"luns": "1", "spread": "pairs"}, stripe.Layout{}, "spread"},
		"spread of few":     {map[string]string{"iops": "50000", "spread": "nodes"}, stripe.Layout{}, "spread"},
		"unknown spread":    {map[string]string{"luns": "4", "spread": "Pairs"}, stripe.Layout{}, "use nodes or pairs"},
		"stripe of one LUN": {map[string]string{"luns": "1", "stripeSize": "64Ki"}, stripe.Layout{}, "stripeSize"},
	} {
		p, err := parseParameters(c.params, true)
		if c.says != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says)) || c.says == "" && (err != nil || p.layout != c.want) {
			t.Errorf("%s: %+v, %v", name, p.layout, err)
		}
	}
	for spread, want := range map[string]bool{"": false, "nodes": false, "pairs": true} {
		if p, err := parseParameters(map[string]string{"luns": "4", "spread": spread}, true); err != nil || p.pairs != want {
			t.Errorf("spread %q: %+v, %v", spread, p, err)
		}
	}
	for sessions, want := range map[string]int{"": 0, "1": 1, "8": v1alpha1.MaxSessions, "0": -1, "9": -1, "-1": -1, "two": -1, "2.0": -1} {
		p, err := parseParameters(map[string]string{"sessions": sessions}, true)
		if want >= 0 && (err != nil || p.sessions != want) || want < 0 && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "sessions is") || !strings.Contains(err.Error(), "1 to 8")) {
			t.Errorf("sessions %q: %+v, %v", sessions, p, err)
		}
	}
	if attach.MaxSessions != v1alpha1.MaxSessions {
		t.Error("a worker makes fewer sessions than a class may say")
	}
	if _, err := parseParameters(map[string]string{"luns": "4"}, false); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `"luns" is unknown`) {
		t.Errorf("without an operator: %v", err)
	}
}

func TestWhatCannotBeStriped(t *testing.T) {
	one, many := []capability.Access{{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}, []capability.Access{{Block: true, Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}}
	four := stripe.Default(4)
	for name, c := range map[string]struct {
		want   backend.CreateVolume
		access []capability.Access
		says   string
	}{
		"one worker":         {backend.CreateVolume{Layout: four, Mutable: backend.Mutable{PinnedNode: v1alpha1.NoPin}}, one, ""},
		"one LUN, many":      {backend.CreateVolume{Mutable: backend.Mutable{PinnedNode: "a"}, SourceVolume: "v"}, many, ""},
		"several workers":    {backend.CreateVolume{Layout: four}, many, "luns"},
		"a clone":            {backend.CreateVolume{Layout: four, SourceVolume: "v"}, one, ""},
		"a preferred node":   {backend.CreateVolume{Layout: four, Mutable: backend.Mutable{PreferredNode: "a"}}, one, "preferredNode"},
		"pinned to one node": {backend.CreateVolume{Layout: four, Mutable: backend.Mutable{PinnedNode: "b"}}, one, "pinnedNode"},
	} {
		if err := stripable(&c.want, c.access); (err != nil) != (c.says != "") || err != nil && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each LUN of a striped volume has a size in whole MiB.
func TestSizeOfStripedVolume(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		required, limit, want int64
		code                  codes.Code
	}{
		{10 * mib, 0, 12 * mib, codes.OK}, {12 * mib, 0, 12 * mib, codes.OK}, {12*mib + 1, 0, 16 * mib, codes.OK}, {1, 0, 4 * mib, codes.OK},
		{13 * mib, 15 * mib, 0, codes.OutOfRange}, {0, 7 * mib, 4 * mib, codes.OK}, {0, 3 * mib, 0, codes.OutOfRange},
	} {
		got, err := chooseSize(&csi.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit}, 0, []capability.Access{{FSType: "ext4"}}, stripe.Default(4))
		if status.Code(err) != c.code || got != c.want {
			t.Errorf("%d to %d: %d, %v", c.required, c.limit, got, err)
		}
	}
}
