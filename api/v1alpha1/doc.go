// Package v1alpha1 has the Kubernetes objects of Gemel, group gemel.storage. What a person or a controller wants stands in
// spec, what is stands in status; each field says who writes it. The rules that hold for all of them: a deletion timestamp
// never destroys data, and no status is needed to serve I/O.
//
// +kubebuilder:object:generate=true
// +groupName=gemel.storage
package v1alpha1
