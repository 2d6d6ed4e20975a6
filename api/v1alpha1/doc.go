// Package v1alpha1 has the Kubernetes objects of Gemel, group gemel.storage. spec is the desired
// state, status the observed state; each type says who writes it. Rules for all of them: a deletion
// timestamp never destroys data, and no status is needed to serve I/O.
//
// +kubebuilder:object:generate=true
// +groupName=gemel.storage
package v1alpha1
