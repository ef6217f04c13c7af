package apiserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// ask sends one request as an administrator and gives the answer with its body.
func ask(t *testing.T, c *cluster, method, path, accept, contentType, body string) (*http.Response, []byte) {
	t.Helper()
	cfg := c.as(t, "admin", "system:masters")
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseIdleConnections()
	req, err := http.NewRequestWithContext(testContext(t), method, cfg.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

// tableOf is the list at path as a table.
func tableOf(t *testing.T, c *cluster, path string) metav1.Table {
	t.Helper()
	resp, b := ask(t, c, http.MethodGet, path, "application/json;as=Table;v=v1;g=meta.k8s.io", "", "")
	var table metav1.Table
	if err := json.Unmarshal(b, &table); err != nil || resp.StatusCode != http.StatusOK || table.Kind != "Table" {
		t.Fatalf("GET %s as a table: %s, %v: %.200s", path, resp.Status, err, b)
	}
	return table
}

// maps makes n ConfigMaps in a namespace of their own.
func maps(t *testing.T, c *cluster, namespace string, n int) {
	t.Helper()
	ctx, cs := testContext(t), c.admin(t)
	if _, err := cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%03d", i)}, Data: map[string]string{"i": fmt.Sprint(i)}}
		if _, err := cs.CoreV1().ConfigMaps(namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryFormIsServed: the same list in each encoding, and each description of
// the API.
func TestEveryFormIsServed(t *testing.T) {
	c := start(t)
	maps(t, c, "forms", 1)
	const list = "/api/v1/namespaces/forms/configmaps"
	for name, x := range map[string]struct {
		path, accept, contentType string
		has                       string
	}{
		"JSON":                 {list, "application/json", "application/json", `"kind":"ConfigMapList"`},
		"YAML":                 {list, "application/yaml", "application/yaml", "kind: ConfigMapList"},
		"protobuf":             {list, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf", "k8s\x00"},
		"metadata alone":       {list, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json", "PartialObjectMetadataList"},
		"OpenAPI 2":            {"/openapi/v2", "application/json", "application/json", `"swagger":"2.0"`},
		"OpenAPI 3":            {"/openapi/v3/apis/apps/v1", "application/json", "application/json", `"openapi":"3.0`},
		"discovery of all":     {"/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", `"APIGroupDiscoveryList"`},
		"discovery of a group": {"/apis/apps/v1", "application/json", "application/json", `"statefulsets"`},
	} {
		resp, b := ask(t, c, http.MethodGet, x.path, x.accept, "", "")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != x.contentType || !bytes.Contains(b, []byte(x.has)) {
			t.Errorf("%s: %s, %s: %.120q", name, resp.Status, resp.Header.Get("Content-Type"), b)
		}
	}
	resp, b := ask(t, c, http.MethodGet, list, "application/cbor", "", "")
	var v map[string]any
	if err := direct.Unmarshal(b, &v); err != nil || resp.Header.Get("Content-Type") != "application/cbor" || v["kind"] != "ConfigMapList" {
		t.Errorf("CBOR: %s, %v: %.120q", resp.Header.Get("Content-Type"), err, b)
	}
	if table := tableOf(t, c, list); len(table.Rows) != 1 || table.ColumnDefinitions[1].Name != "Data" {
		t.Errorf("a table: %+v", table)
	}
	if resp, _ := ask(t, c, http.MethodGet, list, "text/html", "", ""); resp.StatusCode != http.StatusNotAcceptable {
		t.Errorf("a form that there is not: %s", resp.Status)
	}
	_, first := ask(t, c, http.MethodGet, "/openapi/v2", "application/json", "", "")
	if !json.Valid(first) {
		t.Error("OpenAPI 2 is no JSON")
	}
}

// TestUnknownFieldsAreRefusedToldOrDropped: as the client asks.
func TestUnknownFieldsAreRefusedToldOrDropped(t *testing.T) {
	c := start(t)
	const body = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"generateName":"fields-"},"dta":{"a":"b"}}`
	for how, want := range map[string]struct {
		code    int
		warning bool
	}{"Strict": {http.StatusBadRequest, false}, "Warn": {http.StatusCreated, true}, "Ignore": {http.StatusCreated, false}} {
		resp, b := ask(t, c, http.MethodPost, "/api/v1/namespaces/default/configmaps?fieldValidation="+how, "application/json", "application/json", body)
		if resp.StatusCode != want.code || (resp.Header.Get("Warning") != "") != want.warning {
			t.Errorf("%s: %s, warning %q: %s", how, resp.Status, resp.Header.Get("Warning"), b)
		}
	}
}

// TestListsInChunksAreOfOneRevision: what is made and deleted meanwhile does not show.
func TestListsInChunksAreOfOneRevision(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps(t, c, "chunks", 25)
	cm := c.admin(t).CoreV1().ConfigMaps("chunks")
	first, err := cm.List(ctx, metav1.ListOptions{Limit: 10})
	if err != nil || len(first.Items) != 10 || first.Continue == "" || first.RemainingItemCount == nil || *first.RemainingItemCount != 15 {
		t.Fatalf("first chunk: %d of %v, %v", len(first.Items), first.ListMeta, err)
	}
	if err := cm.Delete(ctx, "m020", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cm.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m0105"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a token may be used again
		token, got := first.Continue, len(first.Items)
		for token != "" {
			next, err := cm.List(ctx, metav1.ListOptions{Limit: 10, Continue: token})
			if err != nil {
				t.Fatal(err)
			}
			if next.ResourceVersion != first.ResourceVersion {
				t.Errorf("a chunk is of revision %s, the first of %s", next.ResourceVersion, first.ResourceVersion)
			}
			for i := range next.Items {
				if want := fmt.Sprintf("m%03d", got); next.Items[i].Name != want {
					t.Errorf("item %d is %s", got, next.Items[i].Name)
				}
				got++
			}
			token = next.Continue
		}
		if got != 25 {
			t.Errorf("the chunks have %d items, want 25", got)
		}
	}
	if _, err := cm.List(ctx, metav1.ListOptions{Limit: 10, Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a token of somebody's own: %v", err)
	}
}

// TestWatchBeginsWithTheList: a streaming list gives what there is, then a bookmark
// that says so, then what changes.
func TestWatchBeginsWithTheList(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps(t, c, "streamed", 3)
	cm := c.admin(t).CoreV1().ConfigMaps("streamed")
	yes := true
	w, err := cm.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	seen := 0
	for e := range w.ResultChan() {
		if e.Type == watch.Bookmark {
			m := e.Object.(*corev1.ConfigMap)
			if m.Annotations[metav1.InitialEventsAnnotationKey] != "true" || m.ResourceVersion == "" {
				t.Errorf("the bookmark is %v", m.ObjectMeta)
			}
			break
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d objects came before the bookmark, want 3", seen)
	}
	if err := cm.Delete(ctx, "m001", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("after the bookmark came %s", e.Type)
	}
	// A revision from before all history is refused, so that the client lists again.
	if _, err := cm.Watch(ctx, metav1.ListOptions{ResourceVersion: "nonsense"}); err == nil {
		t.Error("a watch from a revision that is none was begun")
	}
}

func TestFairnessTellsWhereARequestBelongs(t *testing.T) {
	c := start(t)
	resp, _ := ask(t, c, http.MethodGet, "/api/v1/namespaces/default/pods", "application/json", "", "")
	if resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") == "" || resp.Header.Get("X-Kubernetes-PF-PriorityLevel-UID") == "" {
		t.Errorf("the answer names no flow schema: %v", resp.Header)
	}
	_, b := ask(t, c, http.MethodGet, "/metrics", "text/plain", "", "")
	for _, name := range []string{
		"apiserver_flowcontrol_current_executing_requests", "apiserver_flowcontrol_nominal_limit_seats", "apiserver_longrunning_requests",
		"apiserver_request_duration_seconds_count", "apiserver_encryption_config_controller_last_config_info", "apiserver_storage_size_bytes",
	} {
		if !bytes.Contains(b, []byte("\n"+name)) {
			t.Errorf("there is no metric %s", name)
		}
	}
}
