package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tripod-cluster/tripod/nodeagent/env"
)

// definiteError is a failure that old content must not hide: the object or key
// is not there, or the spec cannot be met.
type definiteError struct{ error }

func (e definiteError) Unwrap() error { return e.error }

func isDefinite(err error) bool {
	var d definiteError
	return errors.As(err, &d)
}

func definite(format string, args ...any) error { return definiteError{fmt.Errorf(format, args...)} }

func (m *Manager) payload(ctx context.Context, pod *v1.Pod, v *v1.Volume) (map[string]file, error) {
	f := m.facts(pod)
	p := builder{m: m, ctx: ctx, pod: pod, facts: f, out: map[string]file{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		p.mode = modeOf(s.DefaultMode)
		err = p.configMap(s.Name, s.Items, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		p.mode = modeOf(s.DefaultMode)
		err = p.secret(s.SecretName, s.Items, s.Optional)
	case v.DownwardAPI != nil:
		p.mode = modeOf(v.DownwardAPI.DefaultMode)
		err = p.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		p.mode = modeOf(v.Projected.DefaultMode)
		for i := range v.Projected.Sources {
			if err = p.source(v.Name, i, &v.Projected.Sources[i]); err != nil {
				break
			}
		}
	}
	return p.out, err
}

type builder struct {
	m     *Manager
	ctx   context.Context
	pod   *v1.Pod
	facts env.Facts
	mode  os.FileMode
	out   map[string]file
}

func modeOf(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m) & 0o777
}

// source adds the files of a projected volume's source, which is known by the
// volume's name and its index.
func (p *builder) source(volume string, index int, s *v1.VolumeProjection) error {
	switch {
	case s.ConfigMap != nil:
		return p.configMap(s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
	case s.Secret != nil:
		return p.secret(s.Secret.Name, s.Secret.Items, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return p.downward(s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		return p.token(s.ServiceAccountToken)
	case s.ClusterTrustBundle != nil:
		return p.trustBundle(s.ClusterTrustBundle)
	case s.PodCertificate != nil:
		return p.certificate(volume, index, s.PodCertificate)
	}
	return definite("this kind of projected source is not supported by this node")
}

func (p *builder) configMap(name string, items []v1.KeyToPath, optional *bool) error {
	cm, err := p.facts.Objects.ConfigMap(p.ctx, p.pod.Namespace, name)
	if err != nil {
		return absent(err, optional, "configmap", name)
	}
	data := map[string][]byte{}
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return p.keys(data, items, optional, "configmap", name)
}

func (p *builder) secret(name string, items []v1.KeyToPath, optional *bool) error {
	s, err := p.facts.Objects.Secret(p.ctx, p.pod.Namespace, name)
	if err != nil {
		return absent(err, optional, "secret", name)
	}
	return p.keys(s.Data, items, optional, "secret", name)
}

func absent(err error, optional *bool, kind, name string) error {
	if apierrors.IsNotFound(err) {
		if optional != nil && *optional {
			return nil
		}
		return definite("%s %q not found", kind, name)
	}
	return fmt.Errorf("%s %q: %w", kind, name, err)
}

func (p *builder) keys(data map[string][]byte, items []v1.KeyToPath, optional *bool, kind, name string) error {
	if len(items) == 0 {
		for k, v := range data {
			p.out[k] = file{data: v, mode: p.mode}
		}
		return nil
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return definite("%s %q references non-existent key: %s", kind, name, it.Key)
		}
		mode := p.mode
		if it.Mode != nil {
			mode = modeOf(it.Mode)
		}
		p.out[it.Path] = file{data: v, mode: mode}
	}
	return nil
}

func (p *builder) downward(items []v1.DownwardAPIVolumeFile) error {
	for _, it := range items {
		mode := p.mode
		if it.Mode != nil {
			mode = modeOf(it.Mode)
		}
		var v string
		var err error
		switch {
		case it.FieldRef != nil:
			v, err = env.Field(p.pod, it.FieldRef.FieldPath, p.facts)
		case it.ResourceFieldRef != nil:
			v, err = env.Resource(p.pod, nil, it.ResourceFieldRef, p.facts.Allocatable)
		}
		if err != nil {
			return definiteError{err}
		}
		p.out[it.Path] = file{data: []byte(v), mode: mode}
	}
	return nil
}

func (p *builder) token(s *v1.ServiceAccountTokenProjection) error {
	tok, err := p.m.tokens.get(p.ctx, p.pod, s)
	if err != nil {
		return err
	}
	p.out[s.Path] = p.private([]byte(tok))
	return nil
}

// private is a file readable by whoever runs in the pod, and where that is known,
// by nobody else.
func (p *builder) private(data []byte) file {
	f := file{data: data, mode: p.mode, owner: commonUser(p.pod)}
	if f.owner != nil || fsGroup(p.pod) != nil {
		f.mode = 0o600
	}
	return f
}

// commonUser is the user all containers run as, if the spec says so.
func commonUser(pod *v1.Pod) *int64 {
	var common *int64
	var base *int64
	if pod.Spec.SecurityContext != nil {
		base = pod.Spec.SecurityContext.RunAsUser
	}
	for i, c := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		u := base
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			u = c.SecurityContext.RunAsUser
		}
		if u == nil || (i > 0 && *u != *common) {
			return nil
		}
		common = u
	}
	return common
}
