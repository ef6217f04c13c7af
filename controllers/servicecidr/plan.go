package servicecidr

import (
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	allocator = "ipallocator.k8s.io"
	// grace is how long API servers may still give addresses of a ServiceCIDR that
	// is being deleted; upstream's value.
	grace = 10 * time.Second
)

// prefixes returns what a ServiceCIDR gives addresses of.
func prefixes(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// inUse reports whether an address would be in no ServiceCIDR without this one.
// all are all ServiceCIDRs; those that are being deleted do not count.
func inUse(c *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, addresses []*networkingv1.IPAddress) bool {
	var others []netip.Prefix
	for _, o := range all {
		if o.Name != c.Name && o.DeletionTimestamp == nil {
			others = append(others, prefixes(o)...)
		}
	}
	in := func(ip netip.Addr, of []netip.Prefix) bool {
		return slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	mine := prefixes(c)
	return slices.ContainsFunc(addresses, func(a *networkingv1.IPAddress) bool {
		ip, err := netip.ParseAddr(a.Name)
		return err == nil && a.Labels[networkingv1.LabelManagedBy] == allocator && in(ip, mine) && !in(ip, others)
	})
}

// condition is what Ready is to be.
func condition(c *networkingv1.ServiceCIDR, used bool) metav1.Condition {
	out := metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready"}
	if c.DeletionTimestamp != nil {
		out.Status, out.Reason = metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating
		out.Message = "The ServiceCIDR is being deleted and gives no addresses"
		if used {
			out.Message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
		}
	}
	return out
}
