package controller

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/capability"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	listed = regexp.MustCompile(`: supported parameters are (.*)$`)
)

// section reads the tables of a section of docs/reference/storageclass.md: the names of parameters,
// in order, and the values that the second column lists.
func section(t *testing.T, heading string) (names []string, values map[string][]string) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/reference/storageclass.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(raw), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	values = map[string][]string{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(line, "|")
		name := strings.Trim(cells[1], " `")
		names = append(names, name)
		values[name] = nil
		if len(cells) > 4 || heading == "VolumeAttributesClass" { // not the table of the provisioner's parameters
			for _, v := range quoted.FindAllStringSubmatch(cells[2], -1) {
				values[name] = append(values[name], v[1])
			}
		}
	}
	return names, values
}

// known are the parameters in the error of an unknown parameter.
func known(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		t.Fatal("an unknown parameter is accepted")
	}
	m := listed.FindStringSubmatch(err.Error())
	if m == nil {
		t.Fatalf("%v lists no parameters", err)
	}
	return strings.Split(m[1], ", ")
}

// TestReferenceHasAllParameters compares docs/reference/storageclass.md with the code that reads
// parameters, in both directions.
func TestReferenceHasAllParameters(t *testing.T) {
	const unknown = "no such"
	parse := func(k, v string) error {
		m := map[string]string{k: v}
		if k == paramStripe || k == paramSpread {
			m[paramLUNs] = "2"
		}
		_, err := parseParameters(m, true)
		return err
	}
	modify := func(k, v string) error { _, err := parseMutable(map[string]string{k: v}); return err }
	for _, c := range []struct {
		heading string
		parse   func(k, v string) error
	}{{"StorageClass", parse}, {"VolumeAttributesClass", modify}} {
		names, values := section(t, c.heading)
		var documented []string
		for _, name := range names {
			if strings.HasPrefix(name, reservedPrefix) {
				continue
			}
			documented = append(documented, name)
		}
		code := slices.DeleteFunc(known(t, c.parse(unknown, "")), func(k string) bool { return k == reservedPrefix+"*" })
		if !slices.Equal(documented, code) {
			t.Errorf("%s: the page has %v, the code %v", c.heading, documented, code)
		}
		for _, name := range names {
			for _, v := range append(values[name], "") {
				if err := c.parse(name, v); err != nil {
					t.Errorf("%s: the page has %s %q: %v", c.heading, name, v, err)
				}
			}
			if err := c.parse(name, unknown); (err != nil) != (values[name] != nil || name == paramPool || name == paramLUNs || name == paramIOPS || name == paramSessions) {
				t.Errorf("%s: %s with a value that the page does not have: %v", c.heading, name, err)
			}
		}
	}
	names, values := section(t, "StorageClass")
	if !slices.Equal(values[paramFSType], capability.Filesystems) {
		t.Errorf("%s: the page has %v, the code %v", paramFSType, values[paramFSType], capability.Filesystems)
	}
	for _, k := range append([]string{paramFSType}, keptParameters...) {
		if !slices.Contains(names, k) {
			t.Errorf("the page lacks %s", k)
		}
	}
}
