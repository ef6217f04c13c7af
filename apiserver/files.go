package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
)

// auditPolicy records who changed what. Bodies are left out: they hold Secrets
// and tokens. Left out as a whole are reads, the node's and the controllers'
// constant status, lease and event writes, and the questions that every
// component asks about itself.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: events.k8s.io, resources: [events]}
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
  - {group: authorization.k8s.io, resources: [subjectaccessreviews, selfsubjectaccessreviews, selfsubjectrulesreviews, localsubjectaccessreviews]}
- level: None
  userGroups: ["system:nodes"]
  resources:
  - {group: "", resources: [nodes/status, pods/status]}
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

// authenticationConfig lets a request without credentials see health, as load
// balancers do, and nothing else.
const authenticationConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

// writeRuntimeFiles writes the configuration that upstream reads from files,
// and returns the paths of the authentication configuration and of the audit
// policy.
func writeRuntimeFiles(s *settings) (authn, audit string, err error) {
	if err := os.MkdirAll(s.RuntimeDir, 0o700); err != nil {
		return "", "", fmt.Errorf("make runtime directory: %w", err)
	}
	authn = filepath.Join(s.RuntimeDir, "authentication.yaml")
	if err := os.WriteFile(authn, []byte(authenticationConfig), 0o600); err != nil {
		return "", "", fmt.Errorf("write authentication configuration: %w", err)
	}
	if s.AuditPolicy != "" {
		return authn, s.AuditPolicy, nil
	}
	audit = filepath.Join(s.RuntimeDir, "audit-policy.yaml")
	if err := os.WriteFile(audit, []byte(auditPolicy), 0o600); err != nil {
		return "", "", fmt.Errorf("write audit policy: %w", err)
	}
	return authn, audit, nil
}
