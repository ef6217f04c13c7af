package benchstore

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/test/figure"
)

// scale is how much is measured.
type scale struct {
	rounds  int
	limits  limits
	clients []int // of puts
	readers []int
	sizes   []int // of values, in bytes
	preload int   // keys that reads find
	watches int
	keys    int // of the run with many
}

var (
	full  = scale{rounds: 3, limits: limits{time: 2 * time.Second}, clients: []int{1, 64, 256, 1000}, readers: []int{1, 64, 256}, sizes: []int{256, 1024}, preload: 10_000, watches: 1000, keys: 1_000_000}
	smoke = scale{rounds: 1, limits: limits{ops: 200}, clients: []int{1, 16}, readers: []int{8}, sizes: []int{256}, preload: 100, watches: 20, keys: 2000}
)

// TestBench measures when TRIPOD_BENCH names the directory for store.json; else it tries whether each part works.
func TestBench(t *testing.T) {
	dir := os.Getenv("TRIPOD_BENCH")
	s := smoke
	var clients []int
	if dir != "" {
		s = full
		for _, n := range strings.FieldsFunc(os.Getenv("TRIPOD_BENCH_CLIENTS"), func(r rune) bool { return r == ',' }) {
			c, err := strconv.Atoi(n)
			if err != nil || c < 1 {
				t.Fatalf("TRIPOD_BENCH_CLIENTS=%s: %q is not a number of clients", os.Getenv("TRIPOD_BENCH_CLIENTS"), n)
			}
			clients = append(clients, c)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("TRIPOD_BENCH_KEYS")); err == nil && n > 0 {
		s.keys = n
	}
	if clients != nil {
		s.clients, s.readers = clients, clients
	}
	var all []figure.Figure
	for _, part := range []struct {
		name    string
		measure func(*testing.T, scale) []figure.Figure
	}{
		{"puts", puts},
		{"reads", reads},
		{"watch", watch},
		{"embedded", embedded},
		{"million", million},
	} {
		t.Run(part.name, func(t *testing.T) {
			figures := part.measure(t, s)
			if dir != "" {
				figures = append(figures, figure.Load())
				if err := figure.Publish("", "store: "+part.name, figures); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, figures...)
		})
	}
	if dir == "" || len(all) == 0 {
		return
	}
	if err := figure.Publish(dir, "store", all); err != nil {
		t.Fatal(err)
	}
}
