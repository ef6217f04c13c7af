package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// anonymous lets a request without credentials see health, as load balancers
// do, and nothing else.
const anonymous = `
enabled: true
conditions:
- path: /livez
- path: /readyz
- path: /healthz
`

// builtinAuthentication is what holds where the operator gives no file.
const builtinAuthentication = `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
`

// authenticationFile is the file that upstream reads, and reads again when it
// changes.
func authenticationFile(s *settings) string {
	return filepath.Join(s.RuntimeDir, "authentication.yaml")
}

// mergeAuthentication is the operator's AuthenticationConfiguration with our
// rule for requests without credentials, unless it has one of its own. Upstream
// would let them in everywhere.
func mergeAuthentication(own []byte) ([]byte, error) {
	var config, rule map[string]any
	if err := yaml.UnmarshalStrict(own, &config); err != nil {
		return nil, err
	}
	if config["kind"] != "AuthenticationConfiguration" {
		return nil, fmt.Errorf("its kind is %v, not AuthenticationConfiguration", config["kind"])
	}
	if err := yaml.Unmarshal([]byte(anonymous), &rule); err != nil {
		return nil, err
	}
	if config["anonymous"] == nil {
		config["anonymous"] = rule
	}
	return yaml.Marshal(config)
}

// writeAuthentication writes what upstream reads and says whether it changed.
func writeAuthentication(s *settings) (changed bool, err error) {
	own := []byte(builtinAuthentication)
	if s.AuthenticationConfig != "" {
		if own, err = os.ReadFile(s.AuthenticationConfig); err != nil {
			return false, fmt.Errorf("read authentication configuration: %w", err)
		}
	}
	merged, err := mergeAuthentication(own)
	if err != nil {
		return false, fmt.Errorf("authentication configuration %s: %w", s.AuthenticationConfig, err)
	}
	path := authenticationFile(s)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read authentication configuration of before: %w", err)
	}
	if bytes.Equal(old, merged) {
		return false, nil
	}
	// Upstream must never read half a file.
	next := path + ".new"
	if err := os.WriteFile(next, merged, 0o600); err != nil {
		return false, fmt.Errorf("write authentication configuration: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return false, fmt.Errorf("write authentication configuration: %w", err)
	}
	return true, nil
}

// followAuthentication hands changes of the operator's file to upstream until
// ctx ends. A file that cannot be used is told once, and the one before holds.
func followAuthentication(ctx context.Context, s *settings) {
	if s.AuthenticationConfig == "" {
		return
	}
	t := time.NewTicker(s.ReloadInterval)
	defer t.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		changed, err := writeAuthentication(s)
		switch {
		case err == nil:
			told = ""
			if changed {
				slog.Info("authentication configuration changed", "file", s.AuthenticationConfig)
			}
		case err.Error() != told:
			told = err.Error()
			slog.Error("authentication configuration not reloaded; the one before holds", "error", err)
		}
	}
}
