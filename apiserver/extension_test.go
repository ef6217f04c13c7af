package apiserver_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// shipsCRD has two versions that a webhook converts: v1 has spec.length, v2
// spec.metres.
const shipsCRD = `
metadata: {name: ships.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: ships, singular: ship, kind: Ship, listKind: ShipList, shortNames: [sh]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.sails, statusReplicasPath: .status.sails}
    additionalPrinterColumns:
    - {name: Length, type: integer, jsonPath: .spec.length}
    selectableFields:
    - {jsonPath: .spec.flag}
  - name: v2
    served: true
    storage: false
`

// shipsSchema is that of a version, but for the name of the field with a ship's length.
const shipsSchema = `
type: object
properties:
  spec:
    type: object
    x-kubernetes-validations:
    - {rule: "!has(self.sails) || !has(self.LENGTH) || self.sails <= self.LENGTH", message: more sails than the ship is long}
    - {rule: "self.flag == oldSelf.flag", message: a ship keeps its flag}
    properties:
      LENGTH: {type: integer, minimum: 1}
      sails: {type: integer, default: 2}
      flag: {type: string, default: dk, enum: [dk, nl, old]}
  status:
    type: object
    properties:
      sails: {type: integer}
`

// convertShips is the conversion webhook.
func convertShips(t *testing.T) *httptest.Server {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var review apiextensionsv1.ConversionReview
		if err := json.Unmarshal(b, &review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			var u unstructured.Unstructured
			if err := json.Unmarshal(raw.Raw, &u.Object); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			from, to := "metres", "length"
			if strings.HasSuffix(review.Request.DesiredAPIVersion, "v2") {
				from, to = to, from
			}
			if v, ok, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", from); ok {
				unstructured.RemoveNestedField(u.Object, "spec", from)
				_ = unstructured.SetNestedField(u.Object, v, "spec", to)
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			raw.Object, raw.Raw = &u, nil
			response.ConvertedObjects = append(response.ConvertedObjects, raw)
		}
		review.Request, review.Response = nil, response
		json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestCustomResourcesHaveEveryFeature is one real case of each.
func TestCustomResourcesHaveEveryFeature(t *testing.T) {
	c, ctx := start(t), testContext(t)
	admin := c.as(t, "admin", "system:masters")
	ext, err := apiextensions.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal([]byte(shipsCRD), &crd); err != nil {
		t.Fatal(err)
	}
	for i, field := range []string{"length", "metres"} {
		schema := parsed[apiextensionsv1.JSONSchemaProps](t, strings.ReplaceAll(shipsSchema, "LENGTH", field))
		crd.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}
	}
	hook := convertShips(t)
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &hook.URL, CABundle: certificateOf(hook)},
	}}
	crds := ext.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := crds.Create(ctx, &crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}) })
	of := func(version string) dynamic.ResourceInterface {
		return dyn.Resource(schema.GroupVersionResource{Group: "sea.example.com", Version: version, Resource: "ships"}).Namespace("default")
	}
	v1, v2 := of("v1"), of("v2")
	ship := func(name, spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		text := fmt.Sprintf("apiVersion: sea.example.com/v1\nkind: Ship\nmetadata: {name: %s}\nspec: %s\nstatus: {sails: 9}\n", name, spec)
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		return u
	}
	var made *unstructured.Unstructured
	eventually(t, "ships are served", func() error {
		made, err = v1.Create(ctx, ship("one", "{length: 10, mast: tall}"), metav1.CreateOptions{})
		return err
	})
	get := func(u *unstructured.Unstructured, path ...string) any {
		v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
		return v
	}
	if get(made, "spec", "sails") != int64(2) || get(made, "spec", "flag") != "dk" {
		t.Errorf("defaults: the spec is %v", made.Object["spec"])
	}
	if get(made, "spec", "mast") != nil || made.Object["status"] != nil {
		t.Errorf("pruning, and a status by the main resource: %v", made.Object)
	}
	for name, x := range map[string]struct{ spec, want string }{
		"a schema's type": {"{length: long}", "must be of type integer"},
		"a minimum":       {"{length: 0}", "greater than or equal to 1"},
		"a CEL rule":      {"{length: 2, sails: 3}", "more sails than the ship is long"},
	} {
		if _, err := v1.Create(ctx, ship("bad", x.spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got %v, want %q", name, err, x.want)
		}
	}
	if _, err := v1.Patch(ctx, "one", "application/merge-patch+json", []byte(`{"spec":{"flag":"nl"}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "keeps its flag") {
		t.Errorf("a transition rule: %v", err)
	}

	if _, err := v1.Patch(ctx, "one", "application/merge-patch+json", []byte(`{"spec":{"length":50},"status":{"sails":2}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("the status subresource: %v", err)
	}
	one, err := v1.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || get(one, "spec", "length") != int64(10) || get(one, "status", "sails") != int64(2) || one.GetGeneration() != 1 {
		t.Errorf("after a write of the status: %v, %v", one, err)
	}
	scale, err := v1.Get(ctx, "one", metav1.GetOptions{}, "scale")
	if err != nil || scale.GetKind() != "Scale" || get(scale, "spec", "replicas") != int64(2) {
		t.Errorf("the scale subresource: %v, %v", scale, err)
	}

	second, err := v2.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || get(second, "spec", "metres") != int64(10) || get(second, "spec", "length") != nil {
		t.Errorf("converted to v2: %v, %v", second, err)
	}
	if _, err := v1.Create(ctx, ship("two", "{length: 20, flag: nl}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dutch, err := v1.List(ctx, metav1.ListOptions{FieldSelector: "spec.flag=nl"})
	if err != nil || len(dutch.Items) != 1 || dutch.Items[0].GetName() != "two" {
		t.Errorf("a selectable field: %v, %v", dutch, err)
	}
	table := tableOf(t, c, "/apis/sea.example.com/v1/namespaces/default/ships")
	if len(table.ColumnDefinitions) != 2 || table.ColumnDefinitions[1].Name != "Length" || len(table.Rows) != 2 || fmt.Sprint(table.Rows[0].Cells) != "[one 10]" {
		t.Errorf("printer columns: %+v", table)
	}

	// Ratcheting: what is invalid already may stay when it is not touched.
	if _, err := v1.Create(ctx, ship("old", "{length: 5, flag: old}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the schema is narrowed", func() error {
		now, err := crds.Get(ctx, crd.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range now.Spec.Versions {
			spec := now.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"]
			flag := spec.Properties["flag"]
			flag.Enum = flag.Enum[:2]
			spec.Properties["flag"] = flag
		}
		_, err = crds.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	eventually(t, "the narrower schema holds", func() error {
		_, err := v1.Create(ctx, ship("new", "{length: 5, flag: old}"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) {
			return nil
		}
		return fmt.Errorf("a create gave %w", err)
	})
	if _, err := v1.Patch(ctx, "old", "application/merge-patch+json", []byte(`{"spec":{"length":6}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a change beside what was invalid before: %v", err)
	}
}
