package bootstrap

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"

	"github.com/tripod-cluster/tripod/nodeagent/cgroups"
	"github.com/tripod-cluster/tripod/pki"
)

const (
	// configMark is in the first line of a containerd configuration that is ours.
	configMark = "# Written by noded."
	// DefaultSandboxImage is the pause image that ships with the noded package.
	DefaultSandboxImage = "tripod.local/pause:1"
)

// ErrForeignConfig means that the operator has a containerd configuration of
// their own, which is left alone.
var ErrForeignConfig = errors.New("containerd's configuration is not the package's default and was not written by noded")

// ContainerdSettings is what the node needs of containerd.
type ContainerdSettings struct {
	Major, Minor  int
	SandboxImage  string
	SystemdCgroup bool
	// RestrictOOM: the host lacks CAP_SYS_RESOURCE (a container, a restricted
	// machine), so that scores below noded's own cannot be set.
	RestrictOOM bool
	CNIBinDir   string
	CNIConfDir  string
}

// containerdConfig is the whole file: version 2 for containerd 1.6 and 1.7,
// version 3 from 2.0 on (containerd, docs/cri/config.md).
func containerdConfig(s ContainerdSettings) ([]byte, error) {
	var b bytes.Buffer
	t := configV2
	if s.Major >= 2 {
		t = configV3
	}
	if err := t.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("write containerd configuration: %w", err)
	}
	return b.Bytes(), nil
}

var configV2 = template.Must(template.New("v2").Parse(configMark + ` It is written again by noded join.
# To keep a configuration of your own, remove this line; noded then never touches
# the file, and you keep these values in it.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.SandboxImage}}"
  restrict_oom_score_adj = {{.RestrictOOM}}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.CNIBinDir}}"
    conf_dir = "{{.CNIConfDir}}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = {{.SystemdCgroup}}
`))

var configV3 = template.Must(template.New("v3").Parse(configMark + ` It is written again by noded join.
# To keep a configuration of your own, remove this line; noded then never touches
# the file, and you keep these values in it.
version = 3

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{{.SandboxImage}}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {{.RestrictOOM}}
  [plugins."io.containerd.cri.v1.runtime".cni]
{{- if and (eq .Major 2) (lt .Minor 1)}}
    bin_dir = "{{.CNIBinDir}}"
{{- else}}
    bin_dirs = ["{{.CNIBinDir}}"]
{{- end}}
    conf_dir = "{{.CNIConfDir}}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = {{.SystemdCgroup}}
`))

var versionPattern = regexp.MustCompile(`\bv?(\d+)\.(\d+)\.\d+`)

// parseContainerdVersion reads what `containerd --version` prints.
func parseContainerdVersion(out string) (major, minor int, err error) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return 0, 0, fmt.Errorf("containerd --version printed %q, which names no version", strings.TrimSpace(out))
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	if major == 1 && minor < 6 {
		return major, minor, fmt.Errorf("containerd %d.%d is too old: 1.6 or newer is needed", major, minor)
	}
	return major, minor, nil
}

// detectSettings reads from this host what its containerd needs.
func detectSettings(ctx context.Context, cniBinDirs []string, cniConfDir string) (ContainerdSettings, error) {
	out, err := exec.CommandContext(ctx, "containerd", "--version").CombinedOutput()
	if err != nil {
		return ContainerdSettings{}, fmt.Errorf("run containerd --version: %w: install it with `apt install containerd`", err)
	}
	s := ContainerdSettings{SandboxImage: DefaultSandboxImage, CNIConfDir: cniConfDir, CNIBinDir: cniBinDirs[0],
		SystemdCgroup: cgroups.Detect() == cgroups.Systemd, RestrictOOM: !hasCapability(unix.CAP_SYS_RESOURCE)}
	if s.Major, s.Minor, err = parseContainerdVersion(string(out)); err != nil {
		return s, err
	}
	for _, d := range cniBinDirs {
		if _, err := os.Stat(filepath.Join(d, "bridge")); err == nil {
			s.CNIBinDir = d
			break
		}
	}
	return s, nil
}

// hasCapability looks at this process's bounding set: what containerd, started
// by the same init, can have.
func hasCapability(c int) bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err != nil || set&(1<<uint(c)) != 0
		}
	}
	return true
}

// writeContainerdConfig puts the configuration in place if the file there is
// absent, ours, or a package's unmodified default, which is kept as
// config.toml.tripod-backup. It tells whether the file changed.
func writeContainerdConfig(path string, conf []byte, isDefault func(path string, content []byte) bool) (changed bool, err error) {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, fmt.Errorf("read containerd's configuration: %w", err)
	case bytes.Equal(old, conf):
		return false, nil
	case bytes.HasPrefix(old, []byte(configMark)):
	case len(bytes.TrimSpace(old)) == 0 || isDefault(path, old):
		if err := pki.WriteFile(path+".tripod-backup", old, 0o644); err != nil {
			return false, fmt.Errorf("keep containerd's configuration: %w", err)
		}
	default:
		return false, fmt.Errorf("%w: %s", ErrForeignConfig, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("write containerd's configuration: %w", err)
	}
	if err := pki.WriteFile(path, conf, 0o644); err != nil {
		return false, fmt.Errorf("write containerd's configuration: %w", err)
	}
	return true, nil
}

// packageDefault tells whether the file is as its Debian package installed it:
// dpkg keeps the MD5 of every configuration file it owns.
func packageDefault(path string, content []byte) bool {
	out, err := exec.Command("dpkg-query", "-W", "-f=${Conffiles}\n", "containerd", "containerd.io").Output()
	if err != nil && len(out) == 0 {
		return false
	}
	sum := md5.Sum(content)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == path && f[1] == hex.EncodeToString(sum[:]) {
			return true
		}
	}
	return false
}
