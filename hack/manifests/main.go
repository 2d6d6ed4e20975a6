// Command manifests writes the files of config/ that say what the chart installs by default, for
// `kubectl apply -k config/default`. Their source is charts/gemel. `make generate` runs it.
//
// CRDs and admission policies go the other way: their source is in config/, and the chart carries
// copies. The kustomizations, the namespace and the samples are written by hand.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gemel-storage/gemel/charts"
)

const header = "# Code generated from charts/gemel by hack/manifests; DO NOT EDIT. Run make generate.\n\n"

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

// write replaces the generated files below root, the folder of the module.
func write(root string) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	old, err := generated(root)
	if err != nil {
		return err
	}
	for name := range old {
		if _, ok := files[name]; !ok {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generated returns the files below root that have the header, with their texts.
func generated(root string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(root, "config/*/*.yaml"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		if bytes.HasPrefix(text, []byte(header)) {
			name, err := filepath.Rel(root, p)
			if err != nil {
				return nil, err
			}
			out[name] = string(text)
		}
	}
	return out, nil
}

// generate returns the files of config/ with their texts.
func generate(root string) (map[string]string, error) {
	templates, err := charts.Render(filepath.Join(root, "charts/gemel"), nil)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		for doc := range strings.SplitSeq(templates[name], "\n---\n") {
			file, err := fileOf(path.Base(name), doc)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if file == "" {
				continue
			}
			if out[file] == "" {
				out[file] = header
			} else {
				out[file] += "---\n"
			}
			out[file] += strings.TrimSpace(releaseOnly.ReplaceAllString(doc, "")) + "\n"
		}
	}
	return out, nil
}

// releaseOnly matches the labels that only a release of Helm has.
var releaseOnly = regexp.MustCompile(`(?m)^ *app\.kubernetes\.io/(instance|version|managed-by): .*\n`)

// part names what a template installs, as the files of config/ are called.
var part = map[string]string{"operator.yaml": "operator", "controller.yaml": "csi-controller", "node.yaml": "csi-node", "driver.yaml": "driver"}

// fileOf returns the file of config/ for an object of a template, "" if there is none.
func fileOf(template, doc string) (string, error) {
	switch template {
	case "NOTES.txt", "crds.yaml", "policies.yaml":
		return "", nil
	}
	var object struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
		return "", err
	}
	name, ok := part[template]
	switch {
	case object.Kind == "":
		return "", nil // a condition has left a comment, or nothing
	case !ok:
		return "", fmt.Errorf("no file of config/ is known for %s %s of this template", object.Kind, object.Metadata.Name)
	case strings.HasPrefix(object.Metadata.Name, "gemel-servers-"):
		return "config/rbac/servers.yaml", nil
	case object.Kind == "ServiceAccount", strings.HasPrefix(object.APIVersion, "rbac.authorization.k8s.io/"):
		return "config/rbac/" + name + ".yaml", nil
	case object.Kind == "FlowSchema":
		return "config/policy/flowschema.yaml", nil
	}
	return "config/manager/" + name + ".yaml", nil
}
