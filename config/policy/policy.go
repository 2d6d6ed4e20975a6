// Package policy holds what a cluster is given once, beside the roles: admission policies and flow
// control.
package policy

import (
	"bytes"
	_ "embed"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed lease.yaml
var leaseYAML []byte

//go:embed data.yaml
var dataYAML []byte

//go:embed storageclass.yaml
var storageClassYAML []byte

//go:embed flowschema.yaml
var flowSchemaYAML []byte

// Lease are the policies that guard the records of pairs, with their bindings.
func Lease() ([]*unstructured.Unstructured, error) { return parse(leaseYAML) }

// Data are the policies that keep what holds data from being deleted by mistake, with their
// bindings.
func Data() ([]*unstructured.Unstructured, error) { return parse(dataYAML) }

// StorageClass is the policy of StorageClasses of the driver, with its binding.
func StorageClass() ([]*unstructured.Unstructured, error) { return parse(storageClassYAML) }

// FlowSchema is the priority of a target's calls for its Lease. Its subject and namespace are
// gemel-system.
func FlowSchema() ([]*unstructured.Unstructured, error) { return parse(flowSchemaYAML) }

func parse(b []byte) (out []*unstructured.Unstructured, err error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); err != nil {
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			return nil, err
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}
