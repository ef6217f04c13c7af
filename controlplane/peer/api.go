package peer

import (
	"fmt"
	"path/filepath"
)

// validateAPI checks the form of what is set about the API. Whether a name
// exists and a file can be used, package apiserver says when the peer starts.
func (c *Config) validateAPI() error {
	for _, f := range []struct{ key, path string }{
		{"encryptionConfig", c.EncryptionConfig},
		{"authenticationConfig", c.AuthenticationConfig},
		{"authenticationWebhook", c.AuthenticationWebhook},
		{"authorizationConfig", c.AuthorizationConfig},
		{"admissionConfig", c.AdmissionConfig},
		{"auditPolicy", c.AuditPolicy},
		{"auditWebhook", c.AuditWebhook},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			return fmt.Errorf("%s: %q is not an absolute path", f.key, f.path)
		}
	}
	for _, n := range []struct {
		key   string
		value int
	}{
		{"maxRequestsInFlight", c.MaxRequestsInFlight},
		{"maxMutatingRequestsInFlight", c.MaxMutatingRequestsInFlight},
	} {
		if n.value < 1 || n.value > 100000 {
			return fmt.Errorf("%s: %d is out of range (1 to 100000)", n.key, n.value)
		}
	}
	return nil
}
