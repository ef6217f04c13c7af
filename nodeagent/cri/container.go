package cri

import (
	"fmt"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EnvVar is one variable of a container's environment.
type EnvVar struct{ Name, Value string }

// ContainerOptions is what a container's configuration needs beside its spec.
type ContainerOptions struct {
	Attempt     int
	Image       *runtimeapi.Image // as the runtime holds it
	Command     []string          // expanded
	Args        []string          // expanded
	Env         []EnvVar
	Mounts      []*runtimeapi.Mount
	MemoryBytes int64  // the node's capacity, for the OOM score
	SeccompRoot string // directory of localhost profiles
	AppArmor    bool   // the host has it
	TargetID    string // of an ephemeral container's target, to share its processes
}

// ContainerConfig is the runtime's configuration of one container instance.
// It fails on a spec that cannot be run as asked, such as runAsNonRoot with an
// image that is root's.
func ContainerConfig(pod *v1.Pod, c *v1.Container, o ContainerOptions) (*runtimeapi.ContainerConfig, error) {
	sec, err := containerSecurity(pod, c, o)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(o.Attempt)},
		Image:       &runtimeapi.ImageSpec{Image: o.Image.GetId(), UserSpecifiedImage: c.Image},
		Command:     o.Command,
		Args:        o.Args,
		WorkingDir:  c.WorkingDir,
		Mounts:      o.Mounts,
		Labels:      containerLabels(pod, c),
		Annotations: containerAnnotations(pod, c, o.Attempt),
		LogPath:     filepath.Join(c.Name, strconv.Itoa(o.Attempt)+".log"),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       ContainerResources(pod, c, o.MemoryBytes),
			SecurityContext: sec,
		},
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if s, ok := runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)]; ok {
			cfg.StopSignal = runtimeapi.Signal(s)
		}
	}
	for _, e := range o.Env {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	return cfg, nil
}

// What a container must not see, and not write, of /proc and /sys with the
// default proc mount; Kubernetes' and Docker's lists.
var (
	maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func containerSecurity(pod *v1.Pod, c *v1.Container, o ContainerOptions) (*runtimeapi.LinuxContainerSecurityContext, error) {
	psc, sc := pod.Spec.SecurityContext, c.SecurityContext
	if psc == nil {
		psc = &v1.PodSecurityContext{}
	}
	if sc == nil {
		sc = &v1.SecurityContext{}
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(pod),
		SupplementalGroups:       supplementalGroups(psc),
		SupplementalGroupsPolicy: groupsPolicy(psc),
		Privileged:               sc.Privileged != nil && *sc.Privileged,
		ReadonlyRootfs:           sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs:               sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
	}
	if o.TargetID != "" {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = o.TargetID
	}
	user, group, nonRoot := first(sc.RunAsUser, psc.RunAsUser), first(sc.RunAsGroup, psc.RunAsGroup), first(sc.RunAsNonRoot, psc.RunAsNonRoot)
	if err := setUser(out, user, o.Image, nonRoot != nil && *nonRoot, c.Name); err != nil {
		return nil, err
	}
	if group != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *group}
	}
	if out.RunAsGroup != nil && out.RunAsUser == nil && out.RunAsUsername == "" {
		// CRI refuses a group without a user: root is what the image meant.
		out.RunAsUser = &runtimeapi.Int64Value{Value: 0}
	}
	if caps := sc.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, a := range caps.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(a))
		}
		for _, d := range caps.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(d))
		}
	}
	out.SelinuxOptions = selinux(first(sc.SELinuxOptions, psc.SELinuxOptions))
	if sc.ProcMount == nil || *sc.ProcMount == v1.DefaultProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	out.Seccomp = seccomp(first(sc.SeccompProfile, psc.SeccompProfile), out.Privileged, o.SeccompRoot)
	if o.AppArmor {
		out.Apparmor = apparmor(first(sc.AppArmorProfile, psc.AppArmorProfile), out.Privileged)
		if out.Apparmor != nil { // containerd 1.6 reads the older field
			switch out.Apparmor.ProfileType {
			case runtimeapi.SecurityProfile_RuntimeDefault:
				out.ApparmorProfile = v1.DeprecatedAppArmorBetaProfileRuntimeDefault
			case runtimeapi.SecurityProfile_Unconfined:
				out.ApparmorProfile = v1.DeprecatedAppArmorBetaProfileNameUnconfined
			case runtimeapi.SecurityProfile_Localhost:
				out.ApparmorProfile = v1.DeprecatedAppArmorBetaProfileNamePrefix + out.Apparmor.LocalhostRef
			}
		}
	}
	return out, nil
}

func setUser(out *runtimeapi.LinuxContainerSecurityContext, user *int64, img *runtimeapi.Image, nonRoot bool, name string) error {
	switch {
	case user != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *user}
	case img.GetUid() != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: img.Uid.Value}
	case img.GetUsername() != "":
		out.RunAsUsername = img.Username
	}
	if !nonRoot {
		return nil
	}
	switch {
	case out.RunAsUsername != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (container: %s)", out.RunAsUsername, name)
	case user != nil && *user == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (container: %s)", name)
	case out.RunAsUser == nil || out.RunAsUser.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (container: %s)", name)
	}
	return nil
}

func seccomp(p *v1.SeccompProfile, privileged bool, root string) *runtimeapi.SecurityProfile {
	if p == nil || privileged {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.SeccompProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = filepath.Join(root, filepath.Clean("/"+*p.LocalhostProfile))
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
}

func apparmor(p *v1.AppArmorProfile, privileged bool) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		if privileged {
			return nil
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.AppArmorProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = *p.LocalhostProfile
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
}

// first returns the first pointer that is not nil: the container's setting
// before the pod's.
func first[T any](p ...*T) *T {
	for _, x := range p {
		if x != nil {
			return x
		}
	}
	return nil
}
