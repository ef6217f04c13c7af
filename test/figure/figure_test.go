package figure

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestForm: readers of NAME.json find exactly these keys, and null where there is no peer.
func TestForm(t *testing.T) {
	dir := t.TempDir()
	err := Publish(dir, "writes", []Figure{
		Alone("write, p50", "ms", 1.23456),
		Less("write beside etcd", "ms", 2, 5),
		More("throughput beside etcd", "/s", 300, 200),
		Less("nothing measured", "ms", 0, 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "writes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	flat, _ := json.Marshal(got)
	want := `[{"name":"write, p50","ours":1.235,"peer":null,"ratio":null,"unit":"ms"},` +
		`{"name":"write beside etcd","ours":2,"peer":5,"ratio":2.5,"unit":"ms"},` +
		`{"name":"throughput beside etcd","ours":300,"peer":200,"ratio":1.5,"unit":"/s"},` +
		`{"name":"nothing measured","ours":0,"peer":0,"ratio":null,"unit":"ms"}]`
	if string(flat) != want {
		t.Errorf("writes.json holds\n%s, want\n%s", flat, want)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestEmptyListIsAList(t *testing.T) {
	dir := t.TempDir()
	if err := Publish(dir, "none", nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "none.json")); err != nil || string(b) != "[]\n" {
		t.Errorf("none.json: %q, %v", b, err)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	err := Table(&b, "writes", []Figure{Alone("one client", "ms", 1.5), More("fünfzig", "/s", 1234, 617)})
	if err != nil {
		t.Fatal(err)
	}
	want := "" +
		"writes      ours  unit  peer  ratio\n" +
		"one client  1.50  ms       -      -\n" +
		"fünfzig     1234  /s     617   2.00\n"
	if b.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestQuantile(t *testing.T) {
	var all []time.Duration
	for i := 100; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := Quantile(all, q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	if got := Quantile(all[:1], 0.99); got != 100 {
		t.Errorf("quantile of one: %d", got)
	}
	if all[0] != 100 {
		t.Error("the measurements were reordered")
	}
}
