// Command web is the server of the end-to-end tests: it says who answered whom, and misbehaves on request.
//
//	/            host name, path, remote address, and WHO, as lines of key=value
//	/healthz     200, or 503 after POST /healthz?ok=false (and until POST /healthz?ok=true)
//	/slow?for=2s answers after that time
//	/size?n=1000 n bytes
//	/eat?mib=64  allocates and touches that many MiB and keeps them
//	/exit?code=3 ends the process
//	/env, /files?path=/etc/config   environment; a file, or the names in a directory
//
// UDP on the same port echoes "host name: what was sent". `web get URL` is a client for images without curl.
//
// Environment: PORT (8080), WHO (any text), DRAIN (seconds that it goes on serving after SIGTERM, default 0, then
// finishes open requests within 10 s), IGNORE_TERM=1 (only SIGKILL ends it), START_DELAY (seconds before it listens).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	log.SetOutput(os.Stdout)
	if len(os.Args) == 3 && os.Args[1] == "get" {
		os.Exit(get(os.Args[2]))
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if d := seconds("START_DELAY"); d > 0 {
		select {
		case <-time.After(d):
		case <-term:
			return
		}
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	host, err := os.Hostname()
	if err != nil {
		log.Fatal("host name: ", err)
	}
	udp, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		log.Fatal(err)
	}
	go echo(udp, host)
	srv := &http.Server{Addr: ":" + port, Handler: handler(host, os.Getenv("WHO"), os.Exit), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range term {
			log.Printf("got %v", s)
			if os.Getenv("IGNORE_TERM") != "1" {
				break
			}
		}
		time.Sleep(seconds("DRAIN")) // still serving: endpoints of this pod take a moment to go away everywhere
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			log.Print("shutdown: ", err)
		}
	}()
	log.Printf("%s listens on :%s", host, port)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	<-done
}

func seconds(env string) time.Duration {
	n, _ := strconv.ParseFloat(os.Getenv(env), 64)
	return time.Duration(n * float64(time.Second))
}

// echo answers every datagram with the host's name and what was sent, until c is closed.
func echo(c net.PacketConn, host string) {
	b := make([]byte, 65535)
	for {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(append([]byte(host+": "), b[:n]...), from)
		}
	}
}

// eaten is kept, so that a memory limit is met.
var (
	eatMu sync.Mutex
	eaten [][]byte
)

// handler serves everything but UDP; exit ends the process.
func handler(host, who string, exit func(int)) http.Handler {
	var sick atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL, r.RemoteAddr)
		fmt.Fprintf(w, "host=%s\npath=%s\nremote=%s\nwho=%s\n", host, r.URL.Path, r.RemoteAddr, who)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			sick.Store(r.FormValue("ok") == "false")
		} else if sick.Load() {
			http.Error(w, "sick", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.FormValue("for"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(d):
			fmt.Fprintf(w, "host=%s\n", host)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/size", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "n must be a number of bytes", http.StatusBadRequest)
			return
		}
		_, _ = io.CopyN(w, letters{}, n)
	})
	mux.HandleFunc("/eat", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("mib"))
		eatMu.Lock()
		defer eatMu.Unlock()
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			eaten = append(eaten, b)
		}
		fmt.Fprintln(w, len(eaten))
	})
	mux.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		exit(code)
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		env := os.Environ()
		sort.Strings(env)
		fmt.Fprintln(w, strings.Join(env, "\n"))
	})
	mux.HandleFunc("/files", func(w http.ResponseWriter, r *http.Request) {
		path := r.FormValue("path")
		if b, err := os.ReadFile(path); err == nil {
			_, _ = w.Write(b)
			return
		}
		names, err := os.ReadDir(path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		for _, n := range names {
			fmt.Fprintln(w, n.Name())
		}
	})
	return mux
}

type letters struct{}

func (letters) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// get prints the body of url and returns an exit code.
func get(url string) int {
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil || resp.StatusCode >= 400 {
		fmt.Fprintln(os.Stderr, resp.Status, err)
		return 1
	}
	return 0
}
