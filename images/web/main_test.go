package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func fetch(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAnswers(t *testing.T) {
	exited := -1
	s := httptest.NewServer(handler("pod-1", "me", func(c int) { exited = c }))
	defer s.Close()
	if code, body := fetch(t, "GET", s.URL+"/a/b"); code != 200 || !strings.Contains(body, "host=pod-1\npath=/a/b\nremote=127.0.0.1:") || !strings.Contains(body, "who=me\n") {
		t.Errorf("/a/b: %d %q", code, body)
	}
	if code, _ := fetch(t, "GET", s.URL+"/healthz"); code != 200 {
		t.Errorf("healthy at first: %d", code)
	}
	fetch(t, "POST", s.URL+"/healthz?ok=false")
	if code, _ := fetch(t, "GET", s.URL+"/healthz"); code != 503 {
		t.Errorf("after it was made sick: %d", code)
	}
	fetch(t, "POST", s.URL+"/healthz?ok=true")
	if code, _ := fetch(t, "GET", s.URL+"/healthz"); code != 200 {
		t.Errorf("after it was healed: %d", code)
	}
	if _, body := fetch(t, "GET", s.URL+"/size?n=70000"); len(body) != 70000 {
		t.Errorf("/size gave %d bytes", len(body))
	}
	if code, _ := fetch(t, "GET", s.URL+"/slow?for=x"); code != 400 {
		t.Errorf("bad duration: %d", code)
	}
	if _, body := fetch(t, "GET", s.URL+"/slow?for=1ms"); body != "host=pod-1\n" {
		t.Errorf("/slow: %q", body)
	}
	fetch(t, "GET", s.URL+"/exit?code=3")
	if exited != 3 {
		t.Errorf("exit code %d", exited)
	}
}

func TestEcho(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go echo(c, "pod-1")
	d, err := net.Dial("udp", c.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	_ = d.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 100)
	n, err := d.Read(b)
	if err != nil || string(b[:n]) != "pod-1: hi" {
		t.Errorf("echo: %q, %v", b[:n], err)
	}
}
