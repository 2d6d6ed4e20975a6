package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/csi/durable"
	"github.com/gemel-storage/gemel/internal/fd"
)

// dropIn is our file of multipath's configuration. The administrator's are read, never written.
const dropIn = "/etc/multipath/conf.d/gemel.conf"

// How the LUNs identify themselves (INQUIRY), and are found in multipath's configuration.
const (
	vendor  = "GEMEL"
	product = "ALUA LUN"
)

// Polling of paths, in seconds, where the administrator has chosen none: a path that is back is
// used after two seconds at the latest.
const (
	pollInterval    = 1
	pollIntervalMax = 2
	defaultPolling  = 5 // multipath's own
)

// setting is a line of multipath's configuration.
type setting struct{ key, value string }

// settings of a LUN. detect_prio is off, so that nothing but alua's own priorities can come out.
func settings(noPathRetry int) []setting {
	return []setting{
		{"path_grouping_policy", "group_by_prio"},
		{"prio", "alua"},
		{"detect_prio", "no"},
		{"hardware_handler", "1 alua"},
		{"path_selector", "service-time 0"},
		{"path_checker", "tur"},
		{"failback", "1"}, // s; "immediate" makes multipathd load the map's table again whenever a priority changes, which suspends the map
		{"no_path_retry", strconv.Itoa(noPathRetry)},
		{"fast_io_fail_tmo", "off"}, // multipathd leaves a session's recovery_tmo alone, which a number would become; it refuses 0
		{"dev_loss_tmo", "600"},
		{"recheck_wwid", "yes"},
		{"skip_kpartx", "yes"},
		{"user_friendly_names", "no"},
		{"flush_on_last_del", "no"},
		{"deferred_remove", "no"},
	}
}

// renderDropIn: every word and every brace is on a line of its own, since multipath silently skips
// a section that is not.
func renderDropIn(noPathRetry int, polling bool) []byte {
	var b strings.Builder
	b.WriteString("# Written by the Gemel CSI driver, which puts it back when it is changed. Settings of your own belong into\n# /etc/multipath.conf; docs/workers.md of Gemel says which of them matter here.\n")
	if polling {
		fmt.Fprintf(&b, "defaults {\n\tpolling_interval %d\n\tmax_polling_interval %d\n}\n", pollInterval, pollIntervalMax)
	}
	fmt.Fprintf(&b, "devices {\n\tdevice {\n\t\tvendor %q\n\t\tproduct %q\n", vendor, product)
	for _, s := range settings(noPathRetry) {
		fmt.Fprintf(&b, "\t\t%s %q\n", s.key, s.value)
	}
	b.WriteString("\t}\n}\n")
	return []byte(b.String())
}

// noPathRetry is how many rounds of polling make the deadline.
func noPathRetry(deadline time.Duration, polling int) int {
	return max(2, int((deadline+time.Duration(polling)*time.Second-1)/(time.Duration(polling)*time.Second)))
}

// chosenPolling reads which polling interval the administrator has set: 0 for none. The interval is
// one for the whole machine, so that a choice is respected, and a file that is read after others
// would override them.
func chosenPolling(files [][]byte) (interval int) {
	for _, raw := range files {
		for line := range strings.SplitSeq(string(raw), "\n") {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "polling_interval" && words[0] != "max_polling_interval" {
				continue
			}
			interval = max(interval, defaultPolling)
			if n, err := strconv.Atoi(strings.Trim(words[1], `"`)); err == nil && n > 0 && words[0] == "polling_interval" {
				interval = n
			}
		}
	}
	return interval
}

// adminFiles are the contents of multipath's configuration but for our own file.
func (l *linux) adminFiles() (out [][]byte, err error) {
	paths, err := filepath.Glob(l.path(filepath.Dir(dropIn), "*.conf"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	for _, p := range append([]string{l.path("/etc/multipath.conf")}, paths...) {
		if p == l.path(dropIn) {
			continue
		}
		raw, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, raw)
	}
	return out, nil
}

// installDropIn puts our file in place; multipathd rereads its configuration only if it has
// changed. want is what it then should show.
func (l *linux) installDropIn(ctx context.Context, deadline time.Duration) (want []setting, err error) {
	files, err := l.adminFiles()
	if err != nil {
		return nil, err
	}
	chosen := chosenPolling(files)
	polling := chosen
	if chosen == 0 {
		polling = pollInterval
	}
	retry := noPathRetry(deadline, polling)
	want = settings(retry)
	content, path := renderDropIn(retry, chosen == 0), l.path(dropIn)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(content) {
		return want, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return want, err
	}
	if err := durable.Write(path, content); err != nil {
		return want, err
	}
	return want, l.nudge(ctx, "reconfigure")
}

// removeDropIn takes our file away again.
func (l *linux) removeDropIn(ctx context.Context) error {
	err := os.Remove(l.path(dropIn))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fd.SyncDir(filepath.Dir(l.path(dropIn)))
	}
	return errors.Join(err, l.nudge(ctx, "reconfigure"))
}

// section is a part of what "multipathd show config" prints.
type section struct {
	name     string
	settings []setting
	parts    []*section
}

// parseConfig reads it: a word and a brace open a section, a brace closes it, all else is a word
// and its value.
func parseConfig(text string) *section {
	root := &section{}
	stack := []*section{root}
	for line := range strings.SplitSeq(text, "\n") {
		top := stack[len(stack)-1]
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch value = strings.TrimSpace(value); {
		case key == "" || strings.HasPrefix(key, "#"):
		case key == "}":
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
		case value == "{":
			s := &section{name: key}
			top.parts = append(top.parts, s)
			stack = append(stack, s)
		default:
			top.settings = append(top.settings, setting{key, strings.Trim(value, `"`)})
		}
	}
	return root
}

// all sections of a name.
func (s *section) all(name string) (out []*section) {
	for _, p := range s.parts {
		if p.name == name {
			out = append(out, p)
		}
	}
	return out
}

func (s *section) get(key string) (string, bool) {
	for _, x := range slices.Backward(s.settings) {
		if x.key == key {
			return x.value, true
		}
	}
	return "", false
}

// verifyConfig says what in multipathd's view of its configuration is not as we need it.
func verifyConfig(root *section, want []setting) (out []Lack) {
	var ours *section
	for _, devices := range root.all("devices") {
		for _, d := range devices.all("device") {
			v, _ := d.get("vendor")
			p, _ := d.get("product")
			if v == vendor && p == product {
				ours = d
			}
		}
	}
	if ours == nil {
		return []Lack{{"multipathd does not read " + dropIn, "remove config_dir from /etc/multipath.conf, then multipathd reconfigure"}}
	}
	for _, s := range want {
		if have, ok := ours.get(s.key); !ok || have != s.value {
			out = append(out, Lack{fmt.Sprintf("multipathd has %s %q for %s, not %q", s.key, have, vendor, s.value),
				fmt.Sprintf("remove device { vendor %q } from /etc/multipath.conf, then multipathd reconfigure", vendor)})
		}
		for _, o := range root.all("overrides") {
			if have, ok := o.get(s.key); ok && have != s.value {
				out = append(out, Lack{fmt.Sprintf("overrides { %s %q } takes the place of %q", s.key, have, s.value),
					fmt.Sprintf("move %s from overrides to defaults in /etc/multipath.conf, then multipathd reconfigure", s.key)})
			}
		}
	}
	return append(out, verifyBlacklist(root)...)
}
