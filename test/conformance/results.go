package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// state is how a test ended.
type state string

const (
	passed  state = "passed"
	failed  state = "failed"
	skipped state = "skipped" // by itself, or selected and not run; Message says which
)

// notRun is the message of a test that was selected and did not come to its turn.
const notRun = "not run"

// result is how one test went, the last time that it ran.
type result struct {
	Name     string
	State    state
	Seconds  float64
	Attempts int    // 2 when it ran again alone
	Message  string `json:",omitempty"` // why it failed or was skipped
	Log      string `json:",omitempty"` // file with what it said, beside results.json
}

// records are the results of the selected tests, in order of their names.
type records []result

// newRecords has every selected test as one that did not run.
func newRecords(names []string) records {
	rs := make(records, 0, len(names))
	for _, name := range slices.Sorted(slices.Values(names)) {
		rs = append(rs, result{Name: name, State: skipped, Message: notRun})
	}
	return rs
}

// put takes over what a run brought, and counts the attempt.
func (rs records) put(got []result) {
	for _, r := range got {
		if i, ok := slices.BinarySearchFunc(rs, r.Name, func(e result, name string) int { return strings.Compare(e.Name, name) }); ok {
			r.Attempts = rs[i].Attempts + 1
			rs[i] = r
		}
	}
}

// unfinished are the names of those that failed or did not run.
func (rs records) unfinished() (names []string) {
	for _, r := range rs {
		if r.State == failed || r.State == skipped && r.Message == notRun {
			names = append(names, r.Name)
		}
	}
	return names
}

// failures are the names of those that failed and are not expected to.
func (rs records) failures(causes map[string]string) (names []string) {
	for _, r := range rs {
		if r.State == failed && causes[r.Name] == "" {
			names = append(names, r.Name)
		}
	}
	return names
}

func (rs records) count(s state) (n int) {
	for _, r := range rs {
		if r.State == s {
			n++
		}
	}
	return n
}

func resultsFile(dir string) string { return filepath.Join(dir, "results.json") }

func (rs records) save(dir string) error {
	b, err := json.MarshalIndent(rs, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(resultsFile(dir), b, 0o644)
}

// load reads what save wrote. It is an error if there is nothing to go on from.
func load(dir string) (records, error) {
	b, err := os.ReadFile(resultsFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no earlier run to resume; run without RESUME=1", resultsFile(dir))
	}
	if err != nil {
		return nil, err
	}
	var rs records
	if err := json.Unmarshal(b, &rs); err != nil {
		return nil, fmt.Errorf("%s: %w; run without RESUME=1", resultsFile(dir), err)
	}
	return rs, nil
}
