package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tripod-cluster/tripod/backup"
	"github.com/tripod-cluster/tripod/controlplane/peer"
)

// listenAdmin opens the admin socket, for root and this daemon's user alone.
func listenAdmin(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of the admin socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the admin socket of an earlier run: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("restrict the admin socket: %w", err)
	}
	return l, nil
}

// adminHandler serves the operator's commands on this host.
func (p *Peer) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { answer(w, p.Status(r.Context()), nil) })
	mux.HandleFunc("GET /v1/why", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		why, err := p.why(r.Context(), q.Get("kind"), q.Get("namespace"), q.Get("name"))
		answer(w, why, err)
	})
	mux.HandleFunc("POST /v1/token", func(w http.ResponseWriter, r *http.Request) {
		var q peer.TokenRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&q); err != nil {
			peer.WriteRefusal(w, http.StatusBadRequest, fmt.Errorf("read request: %w", err))
			return
		}
		t, err := p.makeToken(r.Context(), q)
		answer(w, t, err)
	})
	mux.HandleFunc("POST /v1/peers/remove", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Peer string }
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&q); err != nil {
			peer.WriteRefusal(w, http.StatusBadRequest, fmt.Errorf("read request: %w", err))
			return
		}
		answer(w, struct{}{}, p.removePeer(r.Context(), q.Peer))
	})
	mux.HandleFunc("POST /v1/snapshots", func(w http.ResponseWriter, _ *http.Request) {
		f, err := p.backups.Save(backup.Manual)
		answer(w, f, err)
	})
	mux.HandleFunc("POST /v1/step-down", func(w http.ResponseWriter, r *http.Request) {
		answer(w, struct{}{}, p.stepDown(r.Context()))
	})
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		peer.WriteRefusal(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The client is on this host; one that went away needs no answer.
	_ = json.NewEncoder(w).Encode(v)
}

// serveAdmin serves until ctx ends.
func (p *Peer) serveAdmin(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: p.adminHandler(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}
