package apiserver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/yaml"
)

// Encryption says what this peer encrypts in the store.
type Encryption struct {
	// Rules are what the file says, in its order: resources, how they are
	// written, and what else can be read. Names of keys, never keys.
	Rules []string
	// Problem says why the rules do not hold, or not yet: the file was changed
	// and cannot be used, or it was not read again so far. Nil when they hold.
	Problem error
}

// errNoEncryptionConfig hides what the file holds: a parser may quote a key.
var errNoEncryptionConfig = errors.New("it is not an EncryptionConfiguration")

// Encryption is nil where nothing is encrypted.
func (s *Server) Encryption() *Encryption {
	path := s.settings.EncryptionConfig
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return &Encryption{Problem: fmt.Errorf("encryption configuration: %w", err)}
	}
	rules, err := encryptionRules(b)
	if err != nil {
		return &Encryption{Problem: fmt.Errorf("encryption configuration %s: %w; what was read before holds", path, err)}
	}
	e := &Encryption{Rules: rules, Problem: private(path)}
	loaded, err := loadedEncryption()
	switch {
	case err != nil:
		e.Problem = errors.Join(e.Problem, err)
	case loaded != fmt.Sprintf("sha256:%x", sha256.Sum256(b)):
		e.Problem = errors.Join(e.Problem, fmt.Errorf("encryption configuration %s was changed and is not in force: if it stays so for more than %s, the log says why", path, 3*s.settings.ReloadInterval))
	}
	return e
}

// encryptionRules is one line for each rule of the file.
func encryptionRules(file []byte) ([]string, error) {
	var config apiserverv1.EncryptionConfiguration
	if err := yaml.Unmarshal(file, &config); err != nil || len(config.Resources) == 0 {
		return nil, errNoEncryptionConfig
	}
	var rules []string
	for _, r := range config.Resources {
		keys := keyNames(r.Providers)
		if len(keys) == 0 {
			return nil, errNoEncryptionConfig
		}
		rule := strings.Join(r.Resources, ", ") + ": written with " + keys[0]
		if len(keys) > 1 {
			rule += ", read also with " + strings.Join(keys[1:], ", ")
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// keyNames are the keys in the order in which they are tried: the first writes.
func keyNames(providers []apiserverv1.ProviderConfiguration) []string {
	var names []string
	local := func(kind string, keys []apiserverv1.Key) {
		for _, k := range keys {
			names = append(names, kind+" "+k.Name)
		}
	}
	for _, p := range providers {
		switch {
		case p.AESGCM != nil:
			local("aesgcm", p.AESGCM.Keys)
		case p.AESCBC != nil:
			local("aescbc", p.AESCBC.Keys)
		case p.Secretbox != nil:
			local("secretbox", p.Secretbox.Keys)
		case p.KMS != nil:
			names = append(names, "kms "+p.KMS.Name)
		case p.Identity != nil:
			names = append(names, "no encryption")
		}
	}
	return names
}

// loadedEncryption is the hash of the file that is in force, which upstream
// tells by a metric only.
func loadedEncryption() (string, error) {
	const name = "apiserver_encryption_config_controller_last_config_info"
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return "", fmt.Errorf("which encryption configuration is in force: %w", err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "hash" {
					return l.GetValue(), nil
				}
			}
		}
	}
	return "", fmt.Errorf("which encryption configuration is in force: there is no metric %s", name)
}
