package apiserver_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// extensionServer serves fish.example.com/v1 and lets in nobody but the API server.
func extensionServer(t *testing.T, c *cluster) (port int32, up *atomic.Bool) {
	t.Helper()
	pem, err := os.ReadFile(c.dir.FrontProxyCACert())
	if err != nil {
		t.Fatal(err)
	}
	proxies := x509.NewCertPool()
	proxies.AppendCertsFromPEM(pem)
	up = &atomic.Bool{}
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/fish.example.com/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "fish.example.com/v1",
			APIResources: []metav1.APIResource{{Name: "cods", SingularName: "cod", Kind: "Cod", Namespaced: true, Verbs: []string{"list"}}},
		})
	})
	mux.HandleFunc("/apis/fish.example.com/v1/namespaces/default/cods", func(w http.ResponseWriter, r *http.Request) {
		answer(w, map[string]any{"kind": "CodList", "apiVersion": "fish.example.com/v1", "items": []any{},
			"user": r.Header.Get("X-Remote-User"), "groups": r.Header["X-Remote-Group"], "token": r.Header.Get("Authorization")})
	})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: proxies}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, p, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n), up
}

// TestAggregatedAPI: an extension server behind a Service is one with the rest, and
// one that is down says so and spoils nothing.
func TestAggregatedAPI(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	agg, err := aggregator.NewForConfig(c.as(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	port, up := extensionServer(t, c)
	if _, err := cs.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "fish"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The API takes no loopback address as an endpoint; the test's server has no other.
	c.put(t, "/registry/endpointslices/default/fish-1", fmt.Appendf(nil, `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
		"metadata":{"name":"fish-1","namespace":"default","uid":"fish-1","labels":{"kubernetes.io/service-name":"fish"}},"addressType":"IPv4",
		"endpoints":[{"addresses":["127.0.0.1"],"conditions":{"ready":true}}],"ports":[{"name":"https","port":%d,"protocol":"TCP"}]}`, port))
	services := agg.ApiregistrationV1().APIServices()
	if _, err := services.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.fish.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "fish.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "fish"},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available := func(want apiregistrationv1.ConditionStatus) func() error {
		return func() error {
			s, err := services.Get(ctx, "v1.fish.example.com", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, cond := range s.Status.Conditions {
				if cond.Type == apiregistrationv1.Available && cond.Status == want {
					return nil
				}
			}
			return fmt.Errorf("conditions are %+v", s.Status.Conditions)
		}
	}
	eventually(t, "the API that is down is told as unavailable", available(apiregistrationv1.ConditionFalse))
	if served(t, cs, "fish.example.com/v1", "cods") {
		t.Error("what is down is in discovery")
	}
	if !served(t, cs, "apps/v1", "deployments") {
		t.Error("an API that is down hides the others from discovery")
	}
	up.Store(true)
	eventually(t, "the API is available", available(apiregistrationv1.ConditionTrue))
	eventually(t, "discovery has its resources", func() error {
		if !served(t, cs, "fish.example.com/v1", "cods") {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	b, err := client(t, c.as(t, "ann", "system:masters", "crew")).Discovery().RESTClient().Get().AbsPath("/apis/fish.example.com/v1/namespaces/default/cods").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		User, Token string
		Groups      []string
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got.Groups)
	if got.User != "ann" || got.Token != "" || fmt.Sprint(got.Groups) != "[crew system:authenticated system:masters]" {
		t.Errorf("the extension server sees %+v", got)
	}
	if err := services.Delete(ctx, "v1.fish.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// served says whether aggregated discovery has a resource.
func served(t *testing.T, cs *kubernetes.Clientset, groupVersion, resource string) bool {
	t.Helper()
	_, lists, err := cs.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Logf("discovery: %v", err)
	}
	for _, l := range lists {
		for _, r := range l.APIResources {
			if l.GroupVersion == groupVersion && r.Name == resource {
				return true
			}
		}
	}
	return false
}
