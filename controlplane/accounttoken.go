package controlplane

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tripod-cluster/tripod/pki"
)

// signAccountTokens makes what signs the tokens of Secrets, which know no expiry
// and no audience, with the key in the file.
func signAccountTokens(file string) (func(context.Context, *corev1.ServiceAccount, *corev1.Secret) (string, error), error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read ServiceAccount key: %w", err)
	}
	key, err := pki.ParseKey(b)
	if err != nil {
		return nil, fmt.Errorf("ServiceAccount key %s: %w", file, err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("generator of ServiceAccount tokens: %w", err)
	}
	return func(ctx context.Context, a *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
		claims, private := serviceaccount.LegacyClaims(*a, *s)
		return generator.GenerateToken(ctx, claims, private)
	}, nil
}
