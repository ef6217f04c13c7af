package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Host is what Join asks of the machine, apart from files; tests replace it.
type Host interface {
	UID() int
	MachineID() string
	// PortFree tells whether a TCP address can be listened on.
	PortFree(addr string) error
	// CRI tells whether the container runtime answers.
	CRI(ctx context.Context) error
	// Systemctl runs systemctl with these arguments.
	Systemctl(ctx context.Context, args ...string) error
	// ServiceActive tells whether a unit runs.
	ServiceActive(ctx context.Context, unit string) bool
	// ContainerdSettings reads what containerd needs on this host.
	ContainerdSettings(ctx context.Context) (ContainerdSettings, error)
	// PackageDefault tells whether a file is as its package installed it.
	PackageDefault(path string, content []byte) bool
}

// machine is this machine.
type machine struct {
	cri        string
	cniBinDirs []string
	cniConfDir string
}

func (machine) UID() int { return os.Geteuid() }

func (machine) MachineID() string {
	b, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (machine) PortFree(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}

func (m machine) CRI(ctx context.Context) error {
	conn, err := grpc.NewClient(m.cri, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

func (machine) Systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		if t := strings.TrimSpace(string(out)); t != "" {
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, t)
		}
		return fmt.Errorf("systemctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (machine) ServiceActive(ctx context.Context, unit string) bool {
	return exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", unit).Run() == nil
}

func (m machine) ContainerdSettings(ctx context.Context) (ContainerdSettings, error) {
	return detectSettings(ctx, m.cniBinDirs, m.cniConfDir)
}

func (machine) PackageDefault(path string, content []byte) bool { return packageDefault(path, content) }

// errNoContainerd is what preflight says when no runtime is there.
var errNoContainerd = errors.New("containerd does not answer")
