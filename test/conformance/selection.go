package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// conformanceTag marks the tests that conformance consists of.
const conformanceTag = "[Conformance]"

// serialTag marks those that need the cluster for themselves.
const serialTag = "[Serial]"

// parseList reads what e2e.test -list-tests prints: a line a test, "file.go:12: name", between lines of prose.
func parseList(out string) (names []string) {
	line := regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)
	for l := range strings.Lines(out) {
		if m := line.FindStringSubmatch(strings.TrimRight(l, "\n")); m != nil {
			names = append(names, strings.TrimSpace(m[1]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// choose returns the conformance tests that focus matches and skip does not; an empty expression says nothing.
func choose(all []string, focus, skip string) ([]string, error) {
	f, err := regexp.Compile(focus)
	if err != nil {
		return nil, fmt.Errorf("focus: %w", err)
	}
	s, err := regexp.Compile(skip)
	if err != nil {
		return nil, fmt.Errorf("skip: %w", err)
	}
	var out []string
	for _, name := range all {
		if strings.Contains(name, conformanceTag) && f.MatchString(name) && (skip == "" || !s.MatchString(name)) {
			out = append(out, name)
		}
	}
	return out, nil
}

// split parts tests that may run side by side from those that need the cluster for themselves.
func split(names []string) (parallel, serial []string) {
	for _, name := range names {
		if strings.Contains(name, serialTag) {
			serial = append(serial, name)
		} else {
			parallel = append(parallel, name)
		}
	}
	return parallel, serial
}

// focusFlags are ginkgo's flags that select exactly these tests. A program's argument may have 128 KiB.
func focusFlags(names []string) (flags []string) {
	for chunk := range slices.Chunk(names, 100) {
		quoted := make([]string, len(chunk))
		for i, name := range chunk {
			quoted[i] = regexp.QuoteMeta(name)
		}
		flags = append(flags, "--focus=("+strings.Join(quoted, "|")+")$")
	}
	return flags
}

// sig is the special interest group that owns a test: "apps" of "[sig-apps] Deployment …".
func sig(name string) string {
	if rest, ok := strings.CutPrefix(name, "[sig-"); ok {
		if group, _, ok := strings.Cut(rest, "]"); ok {
			return group
		}
	}
	return "other"
}
