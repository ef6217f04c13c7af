package controlplane

import (
	"github.com/tripod-cluster/tripod/apiserver"
	"github.com/tripod-cluster/tripod/controlplane/peer"
)

// apiOptions is what the operator says about the API.
func apiOptions(c peer.Config) apiserver.Options {
	return apiserver.Options{
		FeatureGates: c.FeatureGates, RuntimeConfig: c.RuntimeConfig,
		EncryptionConfig:     c.EncryptionConfig,
		AuthenticationConfig: c.AuthenticationConfig, AuthenticationWebhook: c.AuthenticationWebhook,
		AuthorizationConfig:    c.AuthorizationConfig,
		EnableAdmissionPlugins: c.EnableAdmissionPlugins, DisableAdmissionPlugins: c.DisableAdmissionPlugins, AdmissionConfig: c.AdmissionConfig,
		AuditPolicy: c.AuditPolicy, AuditWebhook: c.AuditWebhook,
		MaxRequestsInFlight: c.MaxRequestsInFlight, MaxMutatingRequestsInFlight: c.MaxMutatingRequestsInFlight,
	}
}

// encryption is what this peer encrypts; nil where that is nothing, or the API
// has not started.
func (p *Peer) encryption() *peer.EncryptionStatus {
	p.mu.Lock()
	api := p.api
	p.mu.Unlock()
	if api == nil {
		return nil
	}
	e := api.Encryption()
	if e == nil {
		return nil
	}
	s := &peer.EncryptionStatus{Rules: e.Rules}
	if e.Problem != nil {
		s.Problem = e.Problem.Error()
	}
	return s
}
