package volumes

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// trustBundle adds the file with the trust anchors of one ClusterTrustBundle, or
// of all that a signer has published and the selector matches: no selector
// matches none, an empty one all.
func (p *builder) trustBundle(s *v1.ClusterTrustBundleProjection) error {
	var bundles []certificatesv1.ClusterTrustBundle
	what := ""
	switch {
	case s.Name != nil:
		what = fmt.Sprintf("ClusterTrustBundle %q", *s.Name)
		b, err := p.m.client.CertificatesV1().ClusterTrustBundles().Get(p.ctx, *s.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err == nil {
			bundles = append(bundles, *b)
		}
	case s.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
		if err != nil {
			return definite("label selector of the ClusterTrustBundles of signer %q: %w", *s.SignerName, err)
		}
		what = fmt.Sprintf("ClusterTrustBundle of signer %q with labels %q", *s.SignerName, selector)
		if _, selectable := selector.Requirements(); !selectable {
			break
		}
		list, err := p.m.client.CertificatesV1().ClusterTrustBundles().List(p.ctx, metav1.ListOptions{
			LabelSelector: selector.String(),
			FieldSelector: fields.OneTermEqualSelector("spec.signerName", *s.SignerName).String(),
		})
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		bundles = list.Items
	default:
		return definite("projected clusterTrustBundle names neither a bundle nor a signer")
	}
	if len(bundles) == 0 && (s.Optional == nil || !*s.Optional) {
		return definite("%s not found", what)
	}
	p.out[s.Path] = file{data: anchors(bundles), mode: p.mode}
	return nil
}

// anchors are the certificates of bundles as PEM, each once, without what stands
// between and in front of them, in an order that does not depend on the list's.
func anchors(bundles []certificatesv1.ClusterTrustBundle) []byte {
	var ders [][]byte
	for _, b := range bundles {
		for block, rest := pem.Decode([]byte(b.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			ders = append(ders, block.Bytes)
		}
	}
	slices.SortFunc(ders, bytes.Compare)
	out := []byte{}
	for _, der := range slices.CompactFunc(ders, bytes.Equal) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return out
}
