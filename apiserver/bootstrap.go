package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// bootstrapHook is the name of the post-start hook; readyz waits for it.
const bootstrapHook = "tripod-bootstrap-rbac"

// bootstrapRoles lets a joining peer ask for the cluster's authorities. What a
// joining node needs, upstream has roles for.
func bootstrapRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{{
		ObjectMeta: meta("tripod:peer-bootstrapper"),
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"post"}, NonResourceURLs: []string{PathJoin}}},
	}}
}

// bootstrapBindings: a bootstrap token may ask for a node's certificate and
// have it approved, a node may renew its own, and a node's dataplane reads
// Services, EndpointSlices and the other nodes.
func bootstrapBindings() []rbacv1.ClusterRoleBinding {
	const csr = "system:certificates.k8s.io:certificatesigningrequests:"
	return []rbacv1.ClusterRoleBinding{
		binding("tripod:peer-bootstrapper", "tripod:peer-bootstrapper", GroupPeerBootstrappers),
		binding("tripod:node-bootstrapper", "system:node-bootstrapper", "system:bootstrappers"),
		binding("tripod:node-autoapprove-bootstrap", csr+"nodeclient", "system:bootstrappers"),
		binding("tripod:node-autoapprove-renewal", csr+"selfnodeclient", "system:nodes"),
		binding("tripod:node-dataplane", "system:node-proxier", "system:nodes"),
	}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"app.kubernetes.io/managed-by": "tripod"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

func binding(name, role, group string) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
}

// ensureBootstrap is the post-start hook: it repeats until the objects are as
// above, or an operator has taken one over (its autoupdate annotation says
// false). Extra rules and subjects that were added by hand stay.
func ensureBootstrap(hook genericapiserver.PostStartHookContext) error {
	client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("client of the bootstrap RBAC objects: %w", err)
	}
	var last error
	err = wait.PollUntilContextTimeout(hook, 500*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		if last = reconcileBootstrap(client); last != nil {
			slog.Debug("bootstrap RBAC objects not written yet", "err", last)
		}
		return last == nil, nil
	})
	if err != nil && hook.Err() == nil {
		return fmt.Errorf("write the bootstrap RBAC objects: %w", last)
	}
	return nil
}

func reconcileBootstrap(client kubernetes.Interface) error {
	for _, r := range bootstrapRoles() {
		o := reconciliation.ReconcileRoleOptions{
			Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &r},
			Client:  reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
			Confirm: true,
		}
		if _, err := o.Run(); err != nil {
			return fmt.Errorf("cluster role %s: %w", r.Name, err)
		}
	}
	for _, b := range bootstrapBindings() {
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &b},
			Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
			Confirm:     true,
		}
		if _, err := o.Run(); err != nil {
			return fmt.Errorf("cluster role binding %s: %w", b.Name, err)
		}
	}
	return nil
}
