// Package figure is the form in which every benchmark gives its results: a table on screen, and NAME.json, a list of
// {name, unit, ours, peer, ratio}. A ratio above 1 is better for us; peer and ratio are null where nothing was measured
// beside us.
package figure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Figure is one measured quantity.
type Figure struct {
	Name  string   `json:"name"` // what was measured, with its counts and conditions
	Unit  string   `json:"unit"` // "ms", "/s", "MiB"; empty for a plain number
	Ours  float64  `json:"ours"`
	Peer  *float64 `json:"peer"`
	Ratio *float64 `json:"ratio"`
}

// Alone is a figure that has no peer.
func Alone(name, unit string, ours float64) Figure {
	return Figure{Name: name, Unit: unit, Ours: round(ours)}
}

// Less compares quantities of which less is better, such as latency and memory.
func Less(name, unit string, ours, peer float64) Figure {
	return compare(name, unit, ours, peer, peer/ours)
}

// More compares quantities of which more is better, such as throughput.
func More(name, unit string, ours, peer float64) Figure {
	return compare(name, unit, ours, peer, ours/peer)
}

func compare(name, unit string, ours, peer, ratio float64) Figure {
	f := Alone(name, unit, ours)
	peer = round(peer)
	f.Peer = &peer
	if !math.IsNaN(ratio) && !math.IsInf(ratio, 0) { // JSON has no such numbers
		ratio = round(ratio)
		f.Ratio = &ratio
	}
	return f
}

// round keeps four digits: more than any benchmark repeats.
func round(x float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	if err != nil {
		return x
	}
	return r
}

// Milliseconds is d in ms.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Quantile is the smallest measured value that a share q of all, 0 to 1, does not exceed (nearest rank). It panics
// when nothing was measured. It does not reorder all.
func Quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// Latency is the 50th and the 99th percentile of all, in ms, each as a figure without a peer.
func Latency(name string, all []time.Duration) []Figure {
	return []Figure{
		Alone(name+", p50", "ms", Milliseconds(Quantile(all, 0.5))),
		Alone(name+", p99", "ms", Milliseconds(Quantile(all, 0.99))),
	}
}

// Load is how busy the machine is, from /proc/loadavg: tasks that ran or waited over the last minute, a processor. What
// was measured while it is far above 1 says more of the machine than of us.
func Load() Figure {
	var load float64
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &load)
	}
	n := runtime.NumCPU()
	return Alone(fmt.Sprintf("machine while measuring: tasks a processor (%d processors, last minute)", n), "", load/float64(n))
}

// Table writes figures as a table with aligned columns.
func Table(w io.Writer, title string, figures []Figure) error {
	rows := [][]string{{title, "ours", "unit", "peer", "ratio"}}
	text := func(x *float64) string {
		if x == nil {
			return "-"
		}
		return number(*x)
	}
	for _, f := range figures {
		rows = append(rows, []string{f.Name, number(f.Ours), f.Unit, text(f.Peer), text(f.Ratio)})
	}
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 || i == 2 { // words left, numbers right
				b.WriteString(c + pad + "  ")
			} else {
				b.WriteString(pad + c + "  ")
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return fmt.Errorf("write table %s: %w", title, err)
		}
	}
	return nil
}

func number(x float64) string {
	switch a := math.Abs(x); {
	case a >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// Publish prints the table on standard output and, where dir is not empty, replaces dir/NAME.json.
func Publish(dir, name string, figures []Figure) error {
	if err := Table(os.Stdout, name, figures); err != nil {
		return err
	}
	fmt.Println()
	if dir == "" {
		return nil
	}
	if figures == nil {
		figures = []Figure{}
	}
	out, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return fmt.Errorf("figures of %s: %w", name, err)
	}
	path := filepath.Join(dir, name+".json")
	if err := os.WriteFile(path+".new", append(out, '\n'), 0o644); err != nil {
		return fmt.Errorf("write figures of %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write figures of %s: %w", name, err)
	}
	return nil
}
