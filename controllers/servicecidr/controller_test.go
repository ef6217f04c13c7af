package servicecidr

import (
	"fmt"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func cidr(name string, going bool, of ...string) *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: of}}
	if going {
		c.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Second)}
		c.Finalizers = []string{finalizer}
	}
	return c
}

func address(ip string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{networkingv1.LabelManagedBy: allocator}}}
}

func TestInUse(t *testing.T) {
	c := cidr("c", true, "10.0.0.0/24", "fd00::/112")
	foreign := address("10.0.0.1")
	foreign.Labels = nil
	for name, x := range map[string]struct {
		others    []*networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		want      bool
	}{
		"no addresses":             {nil, nil, false},
		"an address":               {nil, []*networkingv1.IPAddress{address("10.0.0.1")}, true},
		"an address of IPv6":       {nil, []*networkingv1.IPAddress{address("fd00::1")}, true},
		"an address elsewhere":     {nil, []*networkingv1.IPAddress{address("10.0.1.1")}, false},
		"an address of no one":     {nil, []*networkingv1.IPAddress{foreign}, false},
		"in another one too":       {[]*networkingv1.ServiceCIDR{cidr("big", false, "10.0.0.0/16")}, []*networkingv1.IPAddress{address("10.0.0.1")}, false},
		"in another in part":       {[]*networkingv1.ServiceCIDR{cidr("part", false, "10.0.0.0/30")}, []*networkingv1.IPAddress{address("10.0.0.1"), address("10.0.0.9")}, true},
		"in another that goes too": {[]*networkingv1.ServiceCIDR{cidr("big", true, "10.0.0.0/16")}, []*networkingv1.IPAddress{address("10.0.0.1")}, true},
	} {
		if got := inUse(c, append(x.others, c), x.addresses); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStaysWhileItIsUsed(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now().Add(time.Hour))
	c := runtimetest.New(t, cidr("ready", false, "10.1.0.0/24"), cidr("going", true, "10.0.0.0/24"), address("10.0.0.1"))
	c.Clock = clock
	c.Run(t, map[string]runtime.Builder{"servicecidr": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	waitFor := func(name, want string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			o, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			got := fmt.Sprint(len(o.Finalizers))
			for _, x := range o.Status.Conditions {
				got += fmt.Sprintf(" %s %s%s", x.Type, x.Status, x.Reason)
			}
			if got != want {
				return fmt.Sprintf("%s: %q, want %q", name, got, want)
			}
			return ""
		})
	}
	waitFor("ready", "1 Ready True")
	waitFor("going", "1 Ready FalseTerminating")
	c.Settle(t)
	if err := c.NetworkingV1().IPAddresses().Delete(t.Context(), "10.0.0.1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		o, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), "going", metav1.GetOptions{})
		if err == nil && len(o.Finalizers) > 0 {
			return "the finalizer is still there"
		}
		return ""
	})
	c.Settle(t)
	before := c.Writes()
	o, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), "ready", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Annotations = map[string]string{"x": "y"} // reconciles
	if _, err := c.NetworkingV1().ServiceCIDRs().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}
