package cluster

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Template is a text that is equal for pods that no filter and no score tells
// apart, but for their labels: of those, see Cluster.LabelsInUse. It is not safe
// for use by several goroutines.
func (p *Pod) Template() string {
	if p.template == "" {
		p.template = p.makeTemplate()
	}
	return p.template
}

func (p *Pod) makeTemplate() string {
	var b strings.Builder
	w := func(s ...string) {
		for _, x := range s {
			b.WriteString(x)
			b.WriteByte(0)
		}
	}
	num := func(n ...int64) {
		for _, x := range n {
			b.WriteString(strconv.FormatInt(x, 10))
			b.WriteByte(0)
		}
	}
	s := &p.Spec
	w(p.Namespace, s.SchedulerName, s.NodeName, string(p.Owner), p.NodeTerms(), p.TolerationsText())
	num(int64(p.Priority))
	if s.PreemptionPolicy != nil {
		w(string(*s.PreemptionPolicy))
	}
	r := &p.Requests
	num(r.MilliCPU, r.Memory, r.EphemeralStorage)
	for _, k := range slices.Sorted(maps.Keys(r.Scalars)) {
		w(string(k))
		num(r.Scalars[k])
	}
	for _, h := range p.Ports {
		w(string(h.Protocol), h.IP)
		num(int64(h.Port))
	}
	if a := s.Affinity; a != nil {
		if a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			w(text(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution))
		}
		if p.Terms != nil {
			for _, l := range [][]Term{p.Terms.Near, p.Terms.Away, p.Terms.PreferNear, p.Terms.PreferAway} {
				for i := range l {
					w(l[i].id)
				}
				w("")
			}
		}
	}
	if len(s.TopologySpreadConstraints) > 0 {
		w(text(s.TopologySpreadConstraints))
	}
	for _, c := range s.InitContainers {
		w(c.Image)
	}
	w("")
	for _, c := range s.Containers {
		w(c.Image)
	}
	w("")
	for i := range s.Volumes {
		// Secrets, projections and the like are on every node.
		v := &s.Volumes[i]
		if c := ClaimName(p.Pod, v); c != "" {
			w("claim", c)
		} else if v.Image != nil {
			w("image", v.Image.Reference)
		}
	}
	if len(s.ResourceClaims) > 0 {
		w("claims of", p.Name)
	}
	return b.String()
}

// NodeTerms is a text that is equal for pods that require the same of nodes'
// labels.
func (p *Pod) NodeTerms() string {
	var out string
	if len(p.Spec.NodeSelector) > 0 {
		out = text(p.Spec.NodeSelector)
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		out += text(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

// TolerationsText is a text that is equal for pods that tolerate the same.
func (p *Pod) TolerationsText() string {
	var b strings.Builder
	for _, t := range p.Spec.Tolerations {
		for _, s := range []string{t.Key, string(t.Operator), t.Value, string(t.Effect)} {
			b.WriteString(s)
			b.WriteByte('|')
		}
	}
	return b.String()
}

// ClaimName is the claim of a volume, empty where it has none; an ephemeral
// volume's is named after both.
func ClaimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // API types can be written
	}
	return string(b)
}

// claimsOf are the claims of a pod's volumes, as namespace/name.
func claimsOf(p *corev1.Pod) []string {
	var out []string
	for i := range p.Spec.Volumes {
		if c := ClaimName(p, &p.Spec.Volumes[i]); c != "" {
			out = append(out, p.Namespace+"/"+c)
		}
	}
	return out
}

// HasClaims says whether the pod has volumes of claims, or claims devices: what is
// decided for it holds for no other.
func (p *Pod) HasClaims() bool { return len(p.Claims) > 0 || len(p.Spec.ResourceClaims) > 0 }
