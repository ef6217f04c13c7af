package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func ptr[T any](v T) *T { return &v }

func list(cpu, mem string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if mem != "" {
		l[v1.ResourceMemory] = resource.MustParse(mem)
	}
	return l
}

func TestQualityOfServiceAndScore(t *testing.T) {
	const gi = 1 << 30
	for _, c := range []struct {
		req, lim v1.ResourceList
		qos      v1.PodQOSClass
		score    int64
	}{
		{nil, nil, v1.PodQOSBestEffort, 1000},
		{list("1", "1Gi"), list("1", "1Gi"), v1.PodQOSGuaranteed, -997},
		{nil, list("1", "1Gi"), v1.PodQOSGuaranteed, -997},
		{list("1", "1Gi"), nil, v1.PodQOSBurstable, 750},
		{list("1", ""), nil, v1.PodQOSBurstable, 999},
		{list("", "4Gi"), nil, v1.PodQOSBurstable, 3},
		{list("1", "1Gi"), list("1", "2Gi"), v1.PodQOSBurstable, 750},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: c.req, Limits: c.lim}}}}}
		if q, s := QOS(p), OOMScore(p, &p.Spec.Containers[0], 4*gi); q != c.qos || s != c.score {
			t.Errorf("requests %v limits %v: %s %d, want %s %d", c.req, c.lim, q, s, c.qos, c.score)
		}
	}
	p := &v1.Pod{Spec: v1.PodSpec{Priority: ptr(int32(2000000000)), Containers: []v1.Container{{}}}}
	if s := OOMScore(p, &p.Spec.Containers[0], gi); s != -997 {
		t.Errorf("a critical pod's score is %d", s)
	}
}

func TestPodLimits(t *testing.T) {
	c := func(cpu, mem string) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Requests: list(cpu, mem), Limits: list(cpu, mem)}}
	}
	p := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{c("2", "64Mi")}, Containers: []v1.Container{c("500m", "64Mi"), c("500m", "64Mi")}}}
	l := PodLimits(p)
	if l.CPUShares != 2048 || l.CPUQuota != 200000 || l.MemoryBytes != 128<<20 {
		t.Errorf("with init: %+v", l)
	}
	p.Spec.Containers[1].Resources.Limits = nil
	if l = PodLimits(p); l.CPUQuota != 0 || l.MemoryBytes != 0 {
		t.Errorf("one container is unlimited, so the pod is: %+v", l)
	}
}

func TestUserAndNonRoot(t *testing.T) {
	root, named, uid := &runtimeapi.Image{}, &runtimeapi.Image{Username: "app"}, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 7}}
	for _, c := range []struct {
		img     *runtimeapi.Image
		user    *int64
		nonRoot bool
		want    string // part of the error; empty: accepted
	}{
		{root, nil, false, ""}, {root, nil, true, "image will run as root"}, {root, ptr(int64(0)), true, "breaks non-root policy"},
		{root, ptr(int64(5)), true, ""}, {named, nil, true, "non-numeric user (app)"}, {uid, nil, true, ""},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{RunAsUser: c.user, RunAsNonRoot: &c.nonRoot}}}
		_, err := ContainerConfig(p, &v1.Container{Name: "c"}, ContainerOptions{Image: c.img})
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("image %v user %v: %v, want %q", c.img, c.user, err, c.want)
		}
	}
}

func TestSecurityIsTheContainersBeforeThePods(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{HostPID: true, SecurityContext: &v1.PodSecurityContext{
		RunAsUser: ptr(int64(1)), RunAsGroup: ptr(int64(2)), FSGroup: ptr(int64(3)), SupplementalGroups: []int64{4}, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}}}
	c := &v1.Container{Name: "c", SecurityContext: &v1.SecurityContext{RunAsUser: ptr(int64(10)), AllowPrivilegeEscalation: ptr(false), ReadOnlyRootFilesystem: ptr(true),
		Capabilities:   &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr("../x.json")}}}
	cfg, err := ContainerConfig(p, c, ContainerOptions{Image: &runtimeapi.Image{}, SeccompRoot: "/s", Attempt: 3})
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Linux.SecurityContext
	if s.RunAsUser.Value != 10 || s.RunAsGroup.Value != 2 || len(s.SupplementalGroups) != 2 || !s.NoNewPrivs || !s.ReadonlyRootfs || s.NamespaceOptions.Pid != runtimeapi.NamespaceMode_NODE {
		t.Errorf("%+v", s)
	}
	if s.Seccomp.LocalhostRef != "/s/x.json" || s.Capabilities.DropCapabilities[0] != "ALL" || len(s.MaskedPaths) == 0 {
		t.Errorf("seccomp %v, capabilities %v", s.Seccomp, s.Capabilities)
	}
	if cfg.LogPath != "c/3.log" || cfg.Annotations["io.kubernetes.container.restartCount"] != "3" || cfg.Labels["io.kubernetes.pod.uid"] != "u" {
		t.Errorf("log %s, annotations %v, labels %v", cfg.LogPath, cfg.Annotations, cfg.Labels)
	}
}

func TestSandbox(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("x", 70), Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Ports: []v1.ContainerPort{{ContainerPort: 53, HostPort: 5353, Protocol: v1.ProtocolUDP}, {ContainerPort: 80}}}}}}
	cfg := SandboxConfig(p, SandboxOptions{LogsRoot: "/logs", CgroupParent: "/kubepods/podu"})
	if len(cfg.Hostname) != 63 || len(cfg.PortMappings) != 1 || cfg.PortMappings[0].Protocol != runtimeapi.Protocol_UDP || cfg.Linux.CgroupParent != "/kubepods/podu" {
		t.Errorf("%+v", cfg)
	}
	p.Spec.HostNetwork = true
	cfg = SandboxConfig(p, SandboxOptions{})
	if cfg.Hostname != "" || len(cfg.PortMappings) != 0 || cfg.Linux.SecurityContext.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE {
		t.Errorf("host network: %+v", cfg)
	}
}

func TestTerminationMessages(t *testing.T) {
	dir := t.TempDir()
	msg, log := filepath.Join(dir, "m"), filepath.Join(dir, "0.log")
	lines := "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n"
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		policy v1.TerminationMessagePolicy
		text   string
		code   int32
		want   string
	}{
		{v1.TerminationMessageReadFile, "bye", 1, "bye"},
		{v1.TerminationMessageReadFile, "", 1, ""},
		{v1.TerminationMessageFallbackToLogsOnError, "bye", 1, "bye"},
		{v1.TerminationMessageFallbackToLogsOnError, "", 1, "one\ntwo\n"},
		{v1.TerminationMessageFallbackToLogsOnError, "", 0, ""},
		{v1.TerminationMessageReadFile, strings.Repeat("x", 5000), 0, strings.Repeat("x", 4096)},
	} {
		if err := os.WriteFile(msg, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		st := &runtimeapi.ContainerStatus{ExitCode: c.code, LogPath: log, Mounts: []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: msg}},
			Annotations: map[string]string{annotationMessagePath: "/dev/termination-log", annotationMessagePolicy: string(c.policy)}}
		if got := terminationMessage(st); got != c.want {
			t.Errorf("%s, file %.10q, exit %d: %.20q, want %.20q", c.policy, c.text, c.code, got, c.want)
		}
	}
}
