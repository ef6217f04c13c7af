// Package images keeps the images of a node: it imports archives from a
// directory (the node may have no registry to reach), sees that the image a
// container needs is there, pulls where it may, and removes what nobody uses
// when the disk fills up.
package images

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	// ErrNeverPull says that the image is not present and must not be pulled.
	ErrNeverPull = errors.New("ErrImageNeverPull")
	// ErrPull says that pulling failed.
	ErrPull = errors.New("ErrImagePull")
	// ErrInspect says that the runtime could not say whether it has the image.
	ErrInspect = errors.New("ImageInspectError")
	// ErrInvalidName says that the reference cannot be read.
	ErrInvalidName = errors.New("InvalidImageName")
)

// Policy returns a container's pull policy, with the API's default.
func Policy(c *v1.Container) v1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	_, after, _ := strings.Cut(c.Image[strings.LastIndex(c.Image, "/")+1:], ":")
	if (after == "" || after == "latest") && !strings.Contains(c.Image, "@") {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// Outcome tells what Ensure did, for the event.
type Outcome struct {
	Image   *runtimeapi.Image
	Present bool // it was there and was not pulled
}

// Ensure sees that the image of a container is present as its pull policy
// says. pulling is called before a pull begins. Errors wrap ErrNeverPull,
// ErrPull, ErrInspect or ErrInvalidName.
func Ensure(ctx context.Context, svc internalapi.ImageManagerService, c *v1.Container, secrets []*v1.Secret, sandbox *runtimeapi.PodSandboxConfig, pulling func()) (Outcome, error) {
	policy := Policy(c)
	spec := &runtimeapi.ImageSpec{Image: c.Image}
	st, err := svc.ImageStatus(ctx, spec, false)
	if err != nil {
		if strings.Contains(err.Error(), "invalid reference format") {
			return Outcome{}, fmt.Errorf("%w: image %q: %w", ErrInvalidName, c.Image, err)
		}
		return Outcome{}, fmt.Errorf("%w: image %q: %w", ErrInspect, c.Image, err)
	}
	if st.GetImage() != nil && policy != v1.PullAlways {
		return Outcome{Image: st.Image, Present: true}, nil
	}
	if policy == v1.PullNever {
		return Outcome{}, fmt.Errorf("%w: container image %q is not present with pull policy of Never", ErrNeverPull, c.Image)
	}
	if pulling != nil {
		pulling()
	}
	var last error
	for _, auth := range append(auths(secrets, c.Image), nil) {
		if _, last = svc.PullImage(ctx, spec, auth, sandbox); last == nil {
			break
		}
	}
	if last != nil {
		return Outcome{}, fmt.Errorf("%w: failed to pull image %q: %w", ErrPull, c.Image, last)
	}
	st, err = svc.ImageStatus(ctx, spec, false)
	if err != nil || st.GetImage() == nil {
		return Outcome{}, fmt.Errorf("%w: image %q is not there after its pull: %w", ErrInspect, c.Image, errors.Join(err))
	}
	return Outcome{Image: st.Image}, nil
}

type dockerConfig struct {
	Auths map[string]struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Auth     string `json:"auth"`
	} `json:"auths"`
}

// auths are the credentials in pull secrets for the registry of an image.
func auths(secrets []*v1.Secret, image string) []*runtimeapi.AuthConfig {
	host := registryOf(image)
	var out []*runtimeapi.AuthConfig
	for _, s := range secrets {
		var cfg dockerConfig
		switch {
		case len(s.Data[v1.DockerConfigJsonKey]) > 0:
			if json.Unmarshal(s.Data[v1.DockerConfigJsonKey], &cfg) != nil {
				continue
			}
		case len(s.Data[v1.DockerConfigKey]) > 0:
			if json.Unmarshal(s.Data[v1.DockerConfigKey], &cfg.Auths) != nil {
				continue
			}
		}
		for server, a := range cfg.Auths {
			if registryOf(strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")+"/x") != host {
				continue
			}
			user, pass := a.Username, a.Password
			if b, err := base64.StdEncoding.DecodeString(a.Auth); err == nil && a.Auth != "" {
				user, pass, _ = strings.Cut(string(b), ":")
			}
			out = append(out, &runtimeapi.AuthConfig{Username: user, Password: pass, ServerAddress: server})
		}
	}
	return out
}

// registryOf is the registry an image reference names; Docker's own is what a
// reference without one means.
func registryOf(ref string) string {
	first, _, ok := strings.Cut(ref, "/")
	if !ok || (!strings.ContainsAny(first, ".:") && first != "localhost") {
		return "index.docker.io"
	}
	if first == "docker.io" {
		return "index.docker.io"
	}
	return first
}
