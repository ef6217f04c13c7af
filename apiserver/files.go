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

// runtimeFiles are the paths of the configuration that upstream reads.
type runtimeFiles struct{ authentication, auditPolicy string }

// writeRuntimeFiles writes the configuration that upstream reads from files and
// that the operator leaves to us.
func writeRuntimeFiles(s *settings) (runtimeFiles, error) {
	if err := os.MkdirAll(s.RuntimeDir, 0o700); err != nil {
		return runtimeFiles{}, fmt.Errorf("make runtime directory: %w", err)
	}
	f := runtimeFiles{authentication: authenticationFile(s), auditPolicy: s.AuditPolicy}
	if _, err := writeAuthentication(s); err != nil {
		return f, err
	}
	if f.auditPolicy != "" {
		return f, nil
	}
	f.auditPolicy = filepath.Join(s.RuntimeDir, "audit-policy.yaml")
	if err := os.WriteFile(f.auditPolicy, []byte(auditPolicy), 0o600); err != nil {
		return f, fmt.Errorf("write audit policy: %w", err)
	}
	return f, nil
}
