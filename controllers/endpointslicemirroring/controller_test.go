package endpointslicemirroring

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func endpoints(ready ...string) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", Labels: map[string]string{"a": "b"}}}
	s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "sql", Port: 5432}}, NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.9"}}}
	for _, ip := range ready {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: ip})
	}
	e.Subsets = []corev1.EndpointSubset{s}
	return e
}

func service(selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"}, Spec: corev1.ServiceSpec{Selector: selector}}
}

func TestWhichEndpointsAreMirrored(t *testing.T) {
	mark := func(f func(*corev1.Endpoints)) *corev1.Endpoints {
		e := endpoints("192.0.2.1")
		f(e)
		return e
	}
	for name, c := range map[string]struct {
		e    *corev1.Endpoints
		svc  *corev1.Service
		want bool
	}{
		"no selector": {endpoints("192.0.2.1"), service(nil), true},
		"selector":    {endpoints("192.0.2.1"), service(map[string]string{"a": "b"}), false},
		"no service":  {endpoints("192.0.2.1"), nil, false},
		"skipped":     {mark(func(e *corev1.Endpoints) { e.Labels[discoveryv1.LabelSkipMirror] = "true" }), service(nil), false},
		"a lock":      {mark(func(e *corev1.Endpoints) { e.Annotations = map[string]string{leaderAnnotation: ""} }), service(nil), false},
	} {
		if got := mirrored(c.e, c.svc); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSlicesByFamilyAndPorts(t *testing.T) {
	e := endpoints("192.0.2.1", "2001:db8::1", "192.0.2.1")
	again := e.Subsets[0]
	again.Addresses = []corev1.EndpointAddress{{IP: "192.0.2.2", Hostname: "two"}}
	other := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: 80}}, Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}}
	e.Subsets = append(e.Subsets, again, other)
	got := map[string]int{}
	for _, s := range wanted(e) {
		got[fmt.Sprintf("%s %d", s.AddressType, *s.Ports[0].Port)] = len(s.Endpoints)
		if s.Labels["a"] != "b" || s.Labels[discoveryv1.LabelServiceName] != "db" || metav1.GetControllerOf(s).Kind != "Endpoints" {
			t.Errorf("%+v", s.ObjectMeta)
		}
	}
	if fmt.Sprint(got) != "map[IPv4 5432:3 IPv4 80:1 IPv6 5432:1]" {
		t.Error(got)
	}
}

func TestSlicesFollowTheEndpoints(t *testing.T) {
	foreign := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}}
	c := runtimetest.New(t, service(nil), endpoints("192.0.2.1"), foreign)
	c.Run(t, map[string]runtime.Builder{"endpointslicemirroring": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	waitFor := func(want string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			l, err := c.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + managedBy})
			if err != nil {
				return err.Error()
			}
			got := ""
			for _, s := range l.Items {
				for _, e := range s.Endpoints {
					got += fmt.Sprintf("%s %v;", e.Addresses[0], *e.Conditions.Ready)
				}
			}
			if got != want {
				return fmt.Sprintf("%q, want %q", got, want)
			}
			return ""
		})
	}
	waitFor("192.0.2.1 true;192.0.2.9 false;")
	c.Settle(t)
	if w := c.Writes(); w != 1 {
		t.Errorf("%d writes for one slice", w)
	}
	if _, err := c.CoreV1().Endpoints("default").Update(t.Context(), endpoints("192.0.2.5"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor("192.0.2.5 true;192.0.2.9 false;")
	if err := c.CoreV1().Endpoints("default").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor("")
	if _, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil {
		t.Errorf("the slice of another is gone: %v", err)
	}
}
