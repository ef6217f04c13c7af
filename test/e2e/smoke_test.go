package e2e

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// TestApplication is what `make up` promises: the page, from every host and from
// outside, through ClusterIP and NodePort.
func TestApplication(t *testing.T) {
	whole(t)
	waitReady(t, "default", "app=hello", 3)
	ip := kubectl(t, "get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	for i := 1; i <= hosts; i++ {
		urls := []string{"http://" + ip}
		for k := 1; k <= hosts; k++ {
			urls = append(urls, fmt.Sprintf("http://%s:30080", cluster.Addr(k)))
		}
		for _, u := range urls {
			if out := in(t, i, "curl -sS --max-time 10 "+u); !strings.Contains(out, "Tripod serves this page") {
				t.Errorf("host %d, %s: %q", i, u, out)
			}
		}
	}
	for k := 1; k <= hosts; k++ {
		r, err := web(10 * time.Second).Get(fmt.Sprintf("http://%s:30080", cluster.Addr(k)))
		if err != nil {
			t.Error(err)
			continue
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(b), "Tripod serves this page") {
			t.Errorf("node port of host %d: %q %v", k, b, err)
		}
	}
}
