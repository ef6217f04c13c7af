package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/tripod-cluster/tripod/pki"
)

// DefaultPort is the port of the Kubernetes API on every peer.
const DefaultPort = 6443

// ErrNone means that no peer is known, neither learnt nor given.
var ErrNone = errors.New("no API peer is known")

// Set is the list of known peers and the choice among them. It is safe for
// concurrent use.
type Set struct {
	path string

	mu      sync.Mutex
	peers   []string // learnt from the cluster, in this node's order of preference
	seeds   []string // given by the operator, tried after the learnt ones
	current string   // the one dialled last with success; "" before the first
	bad     string   // the one left last because it could not serve: tried at the very end
	conns   map[*conn]struct{}
}

// file is the persisted form.
type file struct {
	Seeds []string `json:"seeds"`
	Peers []string `json:"peers"`
}

// Normalize turns HOST or HOST:PORT into HOST:PORT; a bare IPv6 address needs no
// brackets.
func Normalize(addr string) (string, error) {
	if addr == "" {
		return "", errors.New("peer address is empty: give HOST or HOST:PORT")
	}
	if ip := net.ParseIP(addr); ip != nil {
		return net.JoinHostPort(addr, strconv.Itoa(DefaultPort)), nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, strconv.Itoa(DefaultPort)
		if _, _, err := net.SplitHostPort(net.JoinHostPort(host, port)); err != nil || containsAny(host, ":/[] ") {
			return "", fmt.Errorf("peer address %q is not HOST or HOST:PORT", addr)
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("peer address %q: port must be 1 to 65535", addr)
	}
	if host == "" {
		return "", fmt.Errorf("peer address %q names no host", addr)
	}
	return net.JoinHostPort(host, port), nil
}

func containsAny(s, chars string) bool {
	for _, c := range chars {
		if slices.Contains([]rune(s), c) {
			return true
		}
	}
	return false
}

// New makes a Set that is kept in no file.
func New(seeds ...string) (*Set, error) { return open("", seeds) }

// Open reads the Set kept in path, which need not exist, and adds seeds to it.
// Learnt peers are shuffled, so that the nodes of a cluster spread over its peers.
func Open(path string, seeds ...string) (*Set, error) { return open(path, seeds) }

func open(path string, seeds []string) (*Set, error) {
	s := &Set{path: path, conns: map[*conn]struct{}{}}
	var f file
	if path != "" {
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("read the list of API peers: %w", err)
		default:
			if err := json.Unmarshal(b, &f); err != nil {
				return nil, fmt.Errorf("read the list of API peers %s: %w: run noded join again with --force", path, err)
			}
		}
	}
	for _, a := range append(f.Seeds, seeds...) {
		n, err := Normalize(a)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(s.seeds, n) {
			s.seeds = append(s.seeds, n)
		}
	}
	for _, a := range f.Peers {
		if n, err := Normalize(a); err == nil && !slices.Contains(s.peers, n) {
			s.peers = append(s.peers, n)
		}
	}
	rand.Shuffle(len(s.peers), func(i, j int) { s.peers[i], s.peers[j] = s.peers[j], s.peers[i] })
	return s, nil
}

// Current is the peer dialled last with success, "" before the first.
func (s *Set) Current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Candidates lists every known address in the order in which it would be dialled now.
func (s *Set) Candidates() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.candidates()
}

func (s *Set) candidates() []string {
	var out []string
	add := func(a string) {
		if a != "" && a != s.bad && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	add(s.current)
	for _, a := range s.peers {
		add(a)
	}
	for _, a := range s.seeds {
		add(a)
	}
	if s.bad != "" && (slices.Contains(s.peers, s.bad) || slices.Contains(s.seeds, s.bad)) {
		out = append(out, s.bad)
	}
	return out
}

// Update replaces the learnt peers and writes the file if that changed them. An
// empty list changes nothing: a cluster with no peer told us nothing.
// Connections to a peer that left the list are closed only if others remain.
func (s *Set) Update(addrs []string) error {
	var norm []string
	for _, a := range addrs {
		n, err := Normalize(a)
		if err != nil {
			return err
		}
		if !slices.Contains(norm, n) {
			norm = append(norm, n)
		}
	}
	if len(norm) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Keep this node's order among those that stay.
	var next []string
	for _, a := range s.peers {
		if slices.Contains(norm, a) {
			next = append(next, a)
		}
	}
	var fresh []string
	for _, a := range norm {
		if !slices.Contains(next, a) {
			fresh = append(fresh, a)
		}
	}
	if len(fresh) == 0 && len(next) == len(s.peers) {
		return nil
	}
	rand.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
	s.peers = append(next, fresh...)
	return s.save()
}

// save writes the file; the caller holds mu.
func (s *Set) save() error {
	if s.path == "" {
		return nil
	}
	sorted := slices.Sorted(slices.Values(s.peers))
	b, err := json.MarshalIndent(file{Seeds: s.seeds, Peers: sorted}, "", "  ")
	if err != nil {
		return err
	}
	if err := pki.WriteFile(s.path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep the list of API peers: %w", err)
	}
	return nil
}

// Save writes the file even if nothing changed since it was read.
func (s *Set) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.save()
}
