package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/pki"
)

func TestNobodyAndStrangersAreRefused(t *testing.T) {
	n := newNode(t)
	other, err := pki.NewAuthority("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	anybody := &rest.Config{Host: n.url, TLSClientConfig: rest.TLSClientConfig{CAData: n.ca.CertPEM(), ServerName: "n1"}}
	bad, good := rest.CopyConfig(anybody), rest.CopyConfig(anybody)
	bad.BearerToken, good.BearerToken = "bad", "good"
	n.allowed["scraper/get/metrics"] = true
	for name, tc := range map[string]struct {
		cfg  *rest.Config
		path string
		want int
	}{
		"nobody":                     {anybody, "/pods", 401},
		"nobody, health":             {anybody, "/healthz", 401},
		"another CA":                 {n.as("apiserver", other), "/pods", 401},
		"known, without permission":  {n.as("someone", n.ca), "/pods", 403},
		"API server":                 {n.apiserver(), "/pods", 200},
		"wrong token":                {bad, "/metrics", 401},
		"token, permitted":           {good, "/metrics", 200},
		"token, not permitted there": {good, "/pods", 403},
		"no such path":               {n.apiserver(), "/nothing", 404},
	} {
		if got, body := n.do(tc.cfg, http.MethodGet, tc.path); got != tc.want {
			t.Errorf("%s: %d %s", name, got, body)
		}
	}
}

func TestPermissionsAreAskedAsAKubeletDoesAndRemembered(t *testing.T) {
	n := newNode(t)
	for path, want := range map[string][]string{
		"/stats/summary": {"stats"}, "/metrics": {"metrics"}, "/metrics/resource": {"metrics"}, "/logs/": {"log"}, "/logs/x": {"log"},
		"/pods": {"pods", "proxy"}, "/runningpods/": {"pods", "proxy"}, "/healthz": {"healthz", "proxy"}, "/configz": {"configz", "proxy"},
		"/exec/a/b/c": {"proxy"}, "/containerLogs/a/b/c": {"proxy"}, "/metricsx": {"proxy"},
	} {
		if got := subresources(path); !slices.Equal(got, want) {
			t.Errorf("%s: %v", path, got)
		}
	}
	for range 3 {
		n.do(n.apiserver(), http.MethodGet, "/pods")
		n.do(n.as("someone", n.ca), http.MethodGet, "/pods")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.reviews) != 4 { // two users, nodes/pods and nodes/proxy
		t.Errorf("%d reviews: %v", len(n.reviews), n.reviews)
	}
	if !slices.Contains(n.reviews[0].Groups, "system:authenticated") {
		t.Errorf("groups %v", n.reviews[0].Groups)
	}
}

func TestLogs(t *testing.T) {
	n := newNode(t)
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/containerLogs/default/web/main":                                               {200, "two\nthree\n"},
		"/containerLogs/default/web/main?previous=true":                                 {200, "one\n"},
		"/containerLogs/default/web/main?tailLines=1":                                   {200, "three\n"},
		"/containerLogs/default/web/main?limitBytes=2":                                  {200, "tw"},
		"/containerLogs/default/web/main?stream=Stderr":                                 {200, ""},
		"/containerLogs/default/web/main?timestamps=true&tailLines=1":                   {200, "2026-11-30T10:00:00.0Z three\n"},
		"/containerLogs/default/web/main?tailLines=x":                                   {422, "tailLines"},
		"/containerLogs/default/web/main?sinceSeconds=1&sinceTime=2026-11-30T10:00:00Z": {422, "at most one"},
		"/containerLogs/default/web/other":                                              {404, `container "other" not found`},
		"/containerLogs/default/gone/main":                                              {404, `pod "gone" not found`},
		"/containerLogs/default/web/slow":                                               {400, "is waiting to start: ImagePullBackOff: no such image"},
		"/containerLogs/default/web/slow?previous=1":                                    {400, "previous terminated container"},
	} {
		code, body := n.do(n.apiserver(), http.MethodGet, path)
		if code != want.code || (code == 200 && body != want.body) || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func TestFollowedLogsArriveAsTheyAreWrittenAndEndWithTheContainer(t *testing.T) {
	n := newNode(t)
	c, err := rest.HTTPClientFor(n.apiserver())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(n.url + "/containerLogs/default/web/main?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, len("two\nthree\n"))
	if _, err := io.ReadFull(resp.Body, buf); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(n.dir, "c2.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintln(f, "2026-11-30T10:00:01.0Z stdout F four")
	if _, err := io.ReadFull(resp.Body, buf[:5]); err != nil || string(buf[:5]) != "four\n" {
		t.Fatalf("%q, %v", buf[:5], err)
	}
	n.rt.mu.Lock()
	fmt.Fprintln(f, "2026-11-30T10:00:02.0Z stdout F last")
	n.rt.containers[1].State = runtimeapi.ContainerState_CONTAINER_EXITED
	n.rt.mu.Unlock()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "last\n" {
		t.Fatalf("%q, %v", rest, err)
	}
}

func TestExecAndAttachGoThroughToTheRuntime(t *testing.T) {
	n := newNode(t)
	for path, first := range map[string]string{
		"/exec/default/web/main?command=sh&command=-c&command=a+b&input=1&output=1&error=1": "c2 sh -c a b\n",
		"/exec/default/web/u1/main?command=id&input=1&output=1&error=1":                     "c2 id\n",
		"/attach/default/web/main?input=1&output=1&error=1":                                 "c2 attached\n",
	} {
		ex, err := remotecommand.NewSPDYExecutor(n.apiserver(), http.MethodPost, n.parse(path))
		if err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = ex.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("typed"), Stdout: &out, Stderr: &errOut})
		cancel()
		if err != nil || out.String() != first+"typed" || errOut.String() != "warning\n" {
			t.Errorf("%s: %q %q %v", path, out.String(), errOut.String(), err)
		}
	}
	// A terminal has no stderr of its own, whatever was asked for.
	ex, err := remotecommand.NewSPDYExecutor(n.apiserver(), http.MethodPost, n.parse("/exec/default/web/main?command=top&output=1&error=1&tty=1"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := ex.StreamWithContext(context.Background(), remotecommand.StreamOptions{Stdout: &out, Tty: true}); err != nil || out.String() != "c2 top\n" {
		t.Errorf("terminal: %q, %v", out.String(), err)
	}
}

func TestStreamsThatCannotBeAreRefusedWithTheReason(t *testing.T) {
	n := newNode(t)
	n.container("c9", "slow", runtimeapi.ContainerState_CONTAINER_EXITED, 1, "")
	for path, want := range map[string]string{
		"/exec/default/web/main?command=id":             "400 you must specify at least 1 of stdin, stdout, stderr",
		"/exec/default/web/slow?command=id&output=1":    `400 container "slow" in pod "web" is not running`,
		"/exec/default/web/other?command=id&output=1":   `404 container "other" not found`,
		"/exec/default/web/u2/main?command=id&output=1": `404 pod "web" not found`,
		"/attach/default/gone/main?output=1":            `404 pod "gone" not found`,
		"/portForward/default/web?port=abc":             "400 port \"abc\"",
		"/portForward/default/gone":                     `404 pod "gone" not found`,
	} {
		code, body := n.do(n.apiserver(), http.MethodPost, path)
		if got := fmt.Sprint(code, " ", body); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if code, _ := n.do(n.as("someone", n.ca), http.MethodPost, "/exec/default/web/main?command=id&output=1"); code != 403 {
		t.Errorf("exec without permission: %d", code)
	}
	if len(n.rt.execs) != 0 {
		t.Errorf("something was run: %v", n.rt.execs)
	}
}

func TestPortForward(t *testing.T) {
	n := newNode(t)
	rt, up, err := spdy.RoundTripperFor(n.apiserver())
	if err != nil {
		t.Fatal(err)
	}
	d := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, n.parse("/portForward/default/web"))
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(d, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := readTCP(t, fmt.Sprintf("127.0.0.1:%d", ports[0].Local)); got != "sandbox port 8080" {
			t.Errorf("got %q", got)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestState(t *testing.T) {
	n := newNode(t)
	var list v1.PodList
	code, body := n.do(n.apiserver(), http.MethodGet, "/pods")
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || list.Kind != "PodList" || len(list.Items) != 1 || list.Items[0].Name != "web" {
		t.Errorf("/pods: %d %s, %v", code, body, err)
	}
	_, body = n.do(n.apiserver(), http.MethodGet, "/runningpods/")
	list = v1.PodList{}
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 1 || len(list.Items[0].Spec.Containers) != 1 {
		t.Errorf("/runningpods: %s, %v", body, err)
	}
	if code, body := n.do(n.apiserver(), http.MethodGet, "/stats/summary"); code != 200 || !strings.Contains(body, `"nodeName":"n1"`) {
		t.Errorf("/stats/summary: %d %s", code, body)
	}
	if code, body := n.do(n.apiserver(), http.MethodPost, "/run/default/web/main?cmd=ls&cmd=-l"); code != 200 || body != "c2 ran ls -l" {
		t.Errorf("/run: %d %s", code, body)
	}
	_, body = n.do(n.apiserver(), http.MethodGet, "/metrics/resource")
	for _, want := range []string{"node_cpu_usage_seconds_total 2.5 ", `container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 4096 `,
		`pod_cpu_usage_seconds_total{namespace="default",pod="web"} 2.5 `, "container_start_time_seconds{", "resource_scrape_error 0"} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics/resource has no %q:\n%s", want, body)
		}
	}
}

func TestHealthFollowsTheSyncLoop(t *testing.T) {
	n := newNode(t)
	n.allowed["apiserver/get/healthz"] = true
	ask := func() int {
		w := httptest.NewRecorder()
		n.srv.HealthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		code, _ := n.do(n.apiserver(), http.MethodGet, "/healthz")
		if w.Code != code {
			t.Errorf("health address says %d, the API %d", w.Code, code)
		}
		return code
	}
	if got := ask(); got != 200 {
		t.Errorf("healthy: %d", got)
	}
	n.mu.Lock()
	n.health = errors.New("stuck")
	n.mu.Unlock()
	if got := ask(); got != 500 {
		t.Errorf("stuck: %d", got)
	}
	w := httptest.NewRecorder()
	n.srv.HealthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pods", nil))
	if w.Code != 404 {
		t.Errorf("the health address serves more than health: %d", w.Code)
	}
}

func TestAPortInUseIsSaid(t *testing.T) {
	n := newNode(t)
	n.srv.cfg.Address = strings.TrimPrefix(n.url, "https://")
	if _, err := n.srv.Listen(); err == nil || !strings.Contains(err.Error(), "ss -ltnp") {
		t.Errorf("got %v", err)
	}
}
