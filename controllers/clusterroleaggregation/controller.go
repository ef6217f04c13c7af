package clusterroleaggregation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

type controller struct {
	client kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
	queue  runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	roles := d.Informers.Rbac().V1().ClusterRoles()
	c := &controller{d.Client, roles.Lister(), q}
	return runtime.Controller{
		Workers: 1,
		// Any role may be selected by any aggregation, also by one that selects
		// an aggregating role; there are few of them.
		Sources:   []runtime.Source{runtime.Each(roles.Informer(), func(*rbacv1.ClusterRole) { c.all() })},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) all() {
	roles, err := c.roles.List(labels.Everything())
	if err != nil {
		return
	}
	for _, r := range roles {
		if r.AggregationRule != nil {
			c.queue.Add(r.Name)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) || (err == nil && role.AggregationRule == nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	rules, err := aggregate(role, all)
	if err != nil {
		return 0, fmt.Errorf("aggregation rule of cluster role %s: %w", name, err)
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, nil
	}
	want := role.DeepCopy()
	want.Rules = rules
	if _, err := c.client.RbacV1().ClusterRoles().Update(ctx, want, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write aggregated rules of cluster role %s: %w", name, err)
	}
	return 0, nil
}

// aggregate returns the rules of the roles that role selects, each once, in the
// order of the roles' names.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	var rules []rbacv1.PolicyRule
	taken := map[string]bool{role.Name: true}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		s, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, r := range sorted {
			if taken[r.Name] || !s.Matches(labels.Set(r.Labels)) {
				continue
			}
			taken[r.Name] = true
			for _, rule := range r.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
