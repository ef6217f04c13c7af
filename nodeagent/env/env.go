package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

// Objects gives the ConfigMaps and Secrets pods name.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Facts is what fields of a running pod are read from beside the pod itself.
type Facts struct {
	NodeName    string
	HostIPs     []string
	PodIPs      []string
	Allocatable v1.ResourceList // stands in for limits a container does not set
	Services    []*v1.Service   // for the variables of Services
	Objects     Objects
}

// Of returns a container's variables in the order the runtime is given them:
// Services first, then envFrom, then env; a later one of the same name wins.
// Names that are not valid are left out of what envFrom brings.
func Of(ctx context.Context, pod *v1.Pod, c *v1.Container, f Facts) ([]cri.EnvVar, error) {
	var order []string
	vars := map[string]string{}
	set := func(name, value string) {
		if _, ok := vars[name]; !ok {
			order = append(order, name)
		}
		vars[name] = value
	}
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	for _, e := range serviceVars(f.Services, pod.Namespace, links) {
		set(e.Name, e.Value)
	}
	for _, from := range c.EnvFrom {
		if err := fromSource(ctx, pod, from, f.Objects, set); err != nil {
			return nil, err
		}
	}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			set(e.Name, Expand(e.Value, lookup))
			continue
		}
		v, ok, err := valueFrom(ctx, pod, c, e.ValueFrom, f)
		if err != nil {
			return nil, err
		}
		if ok {
			set(e.Name, v)
		}
	}
	out := make([]cri.EnvVar, 0, len(order))
	for _, n := range order {
		out = append(out, cri.EnvVar{Name: n, Value: vars[n]})
	}
	return out, nil
}

func fromSource(ctx context.Context, pod *v1.Pod, from v1.EnvFromSource, o Objects, set func(string, string)) error {
	put := func(k, v string) {
		name := from.Prefix + k
		if len(validation.IsRelaxedEnvVarName(name)) == 0 {
			set(name, v)
		}
	}
	switch {
	case from.ConfigMapRef != nil:
		r := from.ConfigMapRef
		cm, err := o.ConfigMap(ctx, pod.Namespace, r.Name)
		if err != nil {
			return optional(r.Optional, err, "configmap", r.Name)
		}
		for _, k := range sortedKeys(cm.Data) {
			put(k, cm.Data[k])
		}
	case from.SecretRef != nil:
		r := from.SecretRef
		s, err := o.Secret(ctx, pod.Namespace, r.Name)
		if err != nil {
			return optional(r.Optional, err, "secret", r.Name)
		}
		for _, k := range sortedKeys(s.Data) {
			put(k, string(s.Data[k]))
		}
	}
	return nil
}

// optional turns the absence of an optional object into nothing.
func optional(opt *bool, err error, kind, name string) error {
	if opt != nil && *opt && apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q not found", kind, name)
	}
	return fmt.Errorf("%s %q: %w", kind, name, err)
}

func valueFrom(ctx context.Context, pod *v1.Pod, c *v1.Container, from *v1.EnvVarSource, f Facts) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := Field(pod, from.FieldRef.FieldPath, f)
		return v, err == nil, err
	case from.ResourceFieldRef != nil:
		v, err := Resource(pod, c, from.ResourceFieldRef, f.Allocatable)
		return v, err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		cm, err := f.Objects.ConfigMap(ctx, pod.Namespace, r.Name)
		if err != nil {
			return "", false, optional(r.Optional, err, "configmap", r.Name)
		}
		if v, ok := cm.Data[r.Key]; ok {
			return v, true, nil
		}
		return missingKey(r.Optional, r.Key, "ConfigMap", pod.Namespace, r.Name)
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		s, err := f.Objects.Secret(ctx, pod.Namespace, r.Name)
		if err != nil {
			return "", false, optional(r.Optional, err, "secret", r.Name)
		}
		if v, ok := s.Data[r.Key]; ok {
			return string(v), true, nil
		}
		return missingKey(r.Optional, r.Key, "Secret", pod.Namespace, r.Name)
	case from.FileKeyRef != nil:
		return "", false, errors.New("environment from files in a volume (fileKeyRef) is not supported by this node: use configMapKeyRef")
	}
	return "", false, nil
}

func missingKey(opt *bool, key, kind, ns, name string) (string, bool, error) {
	if opt != nil && *opt {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in %s %v/%v", key, kind, ns, name)
}

// Field returns what a fieldRef names in a pod.
func Field(pod *v1.Pod, path string, f Facts) (string, error) {
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q has a subscript where none is supported", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		if len(f.HostIPs) == 0 {
			return "", nil
		}
		return f.HostIPs[0], nil
	case "status.hostIPs":
		return strings.Join(f.HostIPs, ","), nil
	case "status.podIP":
		if len(f.PodIPs) == 0 {
			return "", nil
		}
		return f.PodIPs[0], nil
	case "status.podIPs":
		return strings.Join(f.PodIPs, ","), nil
	}
	return "", fmt.Errorf("fieldPath %q is not supported", path)
}

func subscript(path string) (base, key string, ok bool) {
	base, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return path, "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

func formatMap(m map[string]string) string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(out, "\n")
}

// Resource returns what a resourceFieldRef names, in units of its divisor,
// rounded up. c is used when the reference names no container. A limit that is
// not set is the node's allocatable.
func Resource(pod *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	if ref.ContainerName != "" && (c == nil || ref.ContainerName != c.Name) {
		c = nil
		for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				if list[i].Name == ref.ContainerName {
					c = &list[i]
				}
			}
		}
	}
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef names container %q, which the pod does not have", ref.ContainerName)
	}
	which, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || (which != "limits" && which != "requests") {
		return "", fmt.Errorf("resourceFieldRef of resource %q is not supported", ref.Resource)
	}
	rn := v1.ResourceName(name)
	q, has := c.Resources.Requests[rn]
	if which == "limits" {
		q, has = c.Resources.Limits[rn]
		if !has || q.IsZero() {
			q, has = allocatable[rn]
		}
	}
	if !has && rn != v1.ResourceCPU && rn != v1.ResourceMemory && rn != v1.ResourceEphemeralStorage && !strings.HasPrefix(name, v1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("resourceFieldRef of resource %q is not supported", ref.Resource)
	}
	div := ref.Divisor
	if rn == v1.ResourceCPU {
		d := int64(1000)
		if !div.IsZero() {
			d = div.MilliValue()
		}
		return strconv.FormatInt((q.MilliValue()+d-1)/d, 10), nil
	}
	d := int64(1)
	if !div.IsZero() {
		d = div.Value()
	}
	return strconv.FormatInt((q.Value()+d-1)/d, 10), nil
}

// serviceVars are the variables of the Services of the pod's namespace (with
// links) and, always, of the API's own Service.
func serviceVars(services []*v1.Service, namespace string, links bool) []cri.EnvVar {
	chosen := map[string]*v1.Service{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		master := s.Namespace == "default" && s.Name == "kubernetes"
		switch {
		case s.Namespace == namespace && links:
			chosen[s.Name] = s
		case master:
			if _, ok := chosen[s.Name]; !ok {
				chosen[s.Name] = s
			}
		}
	}
	var out []cri.EnvVar
	for _, name := range sortedKeys(chosen) {
		s := chosen[name]
		prefix := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		add := func(k, v string) { out = append(out, cri.EnvVar{Name: k, Value: v}) }
		add(prefix+"_SERVICE_HOST", s.Spec.ClusterIP)
		add(prefix+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				add(prefix+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(int(p.Port)))
			}
		}
		for i, p := range s.Spec.Ports {
			proto := string(v1.ProtocolTCP)
			if p.Protocol != "" {
				proto = string(p.Protocol)
			}
			port := strconv.Itoa(int(p.Port))
			url := strings.ToLower(proto) + "://" + net.JoinHostPort(s.Spec.ClusterIP, port)
			if i == 0 {
				add(prefix+"_PORT", url)
			}
			pp := prefix + "_PORT_" + port + "_" + strings.ToUpper(proto)
			add(pp, url)
			add(pp+"_PROTO", strings.ToLower(proto))
			add(pp+"_PORT", port)
			add(pp+"_ADDR", s.Spec.ClusterIP)
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
