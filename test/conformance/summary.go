package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// summarize writes the page: a table by SIG, the failed tests, those that needed a second attempt, and the verdict.
func summarize(w io.Writer, rs records, causes map[string]string) {
	fmt.Fprintf(w, "%-18s %8s %8s %8s %8s %9s\n", "SIG", "selected", "passed", "failed", "skipped", "seconds")
	groups := map[string]records{}
	for _, r := range rs {
		groups[sig(r.Name)] = append(groups[sig(r.Name)], r)
	}
	row := func(name string, of records) {
		seconds := 0.0
		for _, r := range of {
			seconds += r.Seconds
		}
		fmt.Fprintf(w, "%-18s %8d %8d %8d %8d %9.0f\n", name, len(of), of.count(passed), of.count(failed), of.count(skipped), seconds)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		row(name, groups[name])
	}
	row("all", rs)

	byCause := map[string]records{}
	for _, r := range rs {
		if r.State == failed && causes[r.Name] != "" {
			byCause[causes[r.Name]] = append(byCause[causes[r.Name]], r)
		}
	}
	if names := rs.failures(causes); len(names) > 0 {
		fmt.Fprintf(w, "\nFAILED (%d), not expected:\n", len(names))
		for _, r := range rs {
			if r.State == failed && causes[r.Name] == "" {
				tell(w, r)
			}
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(byCause)) {
		fmt.Fprintf(w, "\nKnown to fail (%d), because %s:\n", len(byCause[cause]), cause)
		for _, r := range byCause[cause] {
			tell(w, r)
		}
	}
	list := func(title string, which func(result) bool) {
		var of records
		for _, r := range rs {
			if which(r) {
				of = append(of, r)
			}
		}
		if len(of) > 0 {
			fmt.Fprintf(w, "\n%s (%d):\n", title, len(of))
			for _, r := range of {
				fmt.Fprintf(w, "  %s%s\n", r.Name, optional(": ", r.Message))
			}
		}
	}
	list("Passed at the second attempt, alone", func(r result) bool { return r.State == passed && r.Attempts > 1 })
	list("Passed, but listed in expected.txt", func(r result) bool { return r.State == passed && causes[r.Name] != "" })
	list("Skipped", func(r result) bool { return r.State == skipped })
	fmt.Fprintf(w, "\n%s\n", verdict(rs))
}

func tell(w io.Writer, r result) {
	fmt.Fprintf(w, "  %s\n      %.0f s: %s\n      %s\n", r.Name, r.Seconds, r.Message, r.Log)
}

func optional(before, s string) string {
	if strings.TrimSpace(s) == "" {
		return ""
	}
	return before + s
}

// verdict is the last line of a run.
func verdict(rs records) string {
	return fmt.Sprintf("conformance: %d passed, %d failed, %d skipped of %d selected", rs.count(passed), rs.count(failed), rs.count(skipped), len(rs))
}
