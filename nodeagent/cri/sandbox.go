package cri

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SandboxOptions is what a sandbox's configuration needs beside the pod.
type SandboxOptions struct {
	Attempt      int
	CgroupParent string
	LogsRoot     string // PodLogsDir
	DNS          *runtimeapi.DNSConfig
	Domain       string // cluster domain
}

// Hostname returns a pod's host name and its domain below the cluster's
// domain, empty without a subdomain.
func Hostname(pod *v1.Pod, clusterDomain string) (host, domain string) {
	host = pod.Spec.Hostname
	if host == "" {
		host = pod.Name
	}
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	if len(host) > 63 {
		host = strings.TrimRight(host[:63], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + clusterDomain
	}
	if domain != "" && pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN {
		host = host + "." + domain
	}
	return host, domain
}

// SandboxConfig is the runtime's configuration of a pod's sandbox.
func SandboxConfig(pod *v1.Pod, o SandboxOptions) *runtimeapi.PodSandboxConfig {
	ref := Ref{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: uint32(o.Attempt)},
		LogDirectory: LogDir(o.LogsRoot, ref),
		DnsConfig:    o.DNS,
		Labels:       sandboxLabels(pod),
		Annotations:  pod.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    o.CgroupParent,
			SecurityContext: sandboxSecurity(pod),
			Sysctls:         map[string]string{},
		},
	}
	if !pod.Spec.HostNetwork || pod.Spec.HostnameOverride != nil {
		cfg.Hostname, _ = Hostname(pod, o.Domain)
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			cfg.Linux.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
		}
	}
	if !pod.Spec.HostNetwork {
		for _, c := range allLongRunning(pod) {
			for _, p := range c.Ports {
				if p.HostPort <= 0 {
					continue
				}
				cfg.PortMappings = append(cfg.PortMappings, &runtimeapi.PortMapping{
					Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
			}
		}
	}
	return cfg
}

// allLongRunning are the main containers and sidecars.
func allLongRunning(pod *v1.Pod) []v1.Container {
	var out []v1.Container
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return append(out, pod.Spec.Containers...)
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	default:
		return runtimeapi.Protocol_TCP
	}
}

func namespaces(pod *v1.Pod) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}

func sandboxSecurity(pod *v1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod),
		// The pause process needs nothing that the default profile forbids, and
		// with it a pod may bring a profile tighter than pause could live with.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	for _, c := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			out.Privileged = true
		}
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return out
	}
	if sc.RunAsUser != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	}
	if sc.RunAsGroup != nil && sc.RunAsUser != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	out.SupplementalGroups = supplementalGroups(sc)
	out.SupplementalGroupsPolicy = groupsPolicy(sc)
	out.SelinuxOptions = selinux(sc.SELinuxOptions)
	return out
}

func supplementalGroups(sc *v1.PodSecurityContext) []int64 {
	if sc == nil {
		return nil
	}
	out := append([]int64(nil), sc.SupplementalGroups...)
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	return out
}

func groupsPolicy(sc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// PodRef is the reference of a pod object.
func PodRef(pod *v1.Pod) Ref {
	return Ref{UID: types.UID(pod.UID), Namespace: pod.Namespace, Name: pod.Name}
}
