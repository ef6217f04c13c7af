package env

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "EMPTY": ""}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	for in, want := range map[string]string{
		"plain":          "plain",
		"$(A)":           "1",
		"x$(A)y$(A)":     "x1y1",
		"$(B)":           "$(A)", // what a value holds is not expanded again
		"$(MISSING)":     "$(MISSING)",
		"$$(A)":          "$(A)",
		"$$$(A)":         "$1",
		"$$$$(A)":        "$$(A)",
		"$(A":            "$(A",
		"a$":             "a$",
		"$A":             "$A",
		"$(EMPTY)|":      "|",
		"$()":            "$()",
		"$(A)$(B)$$end$": "1$(A)$end$",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

type objects struct {
	cms     map[string]map[string]string
	secrets map[string]map[string][]byte
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if d, ok := o.cms[name]; ok {
		return &v1.ConfigMap{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (o objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if d, ok := o.secrets[name]; ok {
		return &v1.Secret{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func field(p string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: p}}
}

func TestEnvironment(t *testing.T) {
	yes, no := true, false
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"k": "v"}, Annotations: map[string]string{"a/b": "c"}},
		Spec: v1.PodSpec{NodeName: "n1", ServiceAccountName: "sa", EnableServiceLinks: &no}}
	ref := func(n string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: n} }
	c := &v1.Container{Name: "c",
		Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1500Ki")}, Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}},
		EnvFrom: []v1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref("cm")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref("none"), Optional: &yes}},
		},
		Env: []v1.EnvVar{
			{Name: "LIT", Value: "$(P_x)!"},
			{Name: "POD", ValueFrom: field("metadata.name")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['k']")},
			{Name: "ANN", ValueFrom: field("metadata.annotations['a/b']")},
			{Name: "IPS", ValueFrom: field("status.podIPs")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu"}}},
			{Name: "CPUM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu", Divisor: resource.MustParse("1m")}}},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "CPULIM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "SEC", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref("s"), Key: "k"}}},
			{Name: "OPT", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref("cm"), Key: "absent", Optional: &yes}}},
			{Name: "LIT", Value: "again"},
		}}
	f := Facts{HostIPs: []string{"192.0.2.1"}, PodIPs: []string{"10.0.0.1", "fd00::1"}, Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3500m")},
		Objects: objects{cms: map[string]map[string]string{"cm": {"x": "1", "not=valid": "2"}}, secrets: map[string]map[string][]byte{"s": {"k": []byte("top")}}},
		Services: []*v1.Service{
			{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []v1.ServicePort{{Name: "https", Port: 443, Protocol: "TCP"}}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}, Spec: v1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []v1.ServicePort{{Port: 80}}}},
		}}
	vars, err := Of(context.Background(), pod, c, f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range vars {
		if _, twice := got[e.Name]; twice {
			t.Errorf("%s is set twice", e.Name)
		}
		got[e.Name] = e.Value
	}
	for k, want := range map[string]string{
		"P_x": "1", "LIT": "again", "POD": "p", "LABEL": "v", "ANN": "c", "IPS": "10.0.0.1,fd00::1", "HOST": "192.0.2.1",
		"CPU": "1", "CPUM": "250", "MEM": "2", "CPULIM": "4", "SEC": "top",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443",
	} {
		if got[k] != want {
			t.Errorf("%s = %q, want %q", k, got[k], want)
		}
	}
	for _, k := range []string{"OPT", "WEB_SERVICE_HOST", "P_not=valid"} {
		if v, ok := got[k]; ok {
			t.Errorf("%s is set to %q and must not be", k, v)
		}
	}
	pod.Spec.EnableServiceLinks = nil
	vars, err = Of(context.Background(), pod, &v1.Container{}, f)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range vars {
		found = found || (e.Name == "WEB_SERVICE_HOST" && e.Value == "10.96.0.9")
	}
	if !found {
		t.Error("a Service of the namespace has no variables though links are on")
	}
}

func TestMissingObjectsAreNamed(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	for want, src := range map[string]*v1.EnvVarSource{
		`configmap "none" not found`:                  {ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Key: "k"}},
		`couldn't find key k in ConfigMap ns/cm`:      {ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: "k"}},
		`fieldPath "spec.nope" is not supported`:      field("spec.nope"),
		`resourceFieldRef of resource "limits.bogus"`: {ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.bogus"}},
	} {
		_, err := Of(context.Background(), pod, &v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: src}}}, Facts{Objects: objects{cms: map[string]map[string]string{"cm": {}}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
