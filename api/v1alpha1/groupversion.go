package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of all types here.
var GroupVersion = schema.GroupVersion{Group: "gemel.storage", Version: "v1alpha1"}

var builder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&StorageCluster{}, &StorageClusterList{},
		&TargetPair{}, &TargetPairList{},
		&LogicalUnit{}, &LogicalUnitList{},
		&LogicalUnitSnapshot{}, &LogicalUnitSnapshotList{},
		&ConsistencyGroup{}, &ConsistencyGroupList{},
		&LogicalUnitGroupSnapshot{}, &LogicalUnitGroupSnapshotList{},
		&Host{}, &HostList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme adds the types to a scheme.
var AddToScheme = builder.AddToScheme
