// Package rbac is who may do what, as objects that the operator applies.
package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const group = "rbac.authorization.k8s.io"

// Target is what the service account of one pair's targets may do: get and update the Lease with
// their record, no other one. It cannot create, delete, patch, list or watch any. Role and binding
// bear the Lease's name.
func Target(namespace, lease, serviceAccount string) (*rbacv1.Role, *rbacv1.RoleBinding) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "gemel-target-" + lease}
	return &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{lease}, Verbs: []string{"get", "update"},
		}}}, &rbacv1.RoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: group, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: serviceAccount}}}
}
