package main

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
)

// readExpected reads the tests that are known to fail, each with its cause.
func readExpected(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	causes, err := parseExpected(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return causes, nil
}

// parseExpected reads lines: "because CAUSE", then the names of the tests that fail for it. Empty lines and those that
// begin with # are skipped.
func parseExpected(r io.Reader) (map[string]string, error) {
	causes := map[string]string{}
	cause := ""
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		switch because, isCause := strings.CutPrefix(line, "because "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case isCause:
			cause = strings.TrimSpace(because)
		case cause == "":
			return nil, fmt.Errorf("line %d: %s: say above it, in a line \"because …\", why it fails", n, line)
		case causes[line] != "":
			return nil, fmt.Errorf("line %d: %s is listed twice", n, line)
		default:
			causes[line] = cause
		}
	}
	return causes, lines.Err()
}

// readNames reads a list of tests, a line each. Empty lines and those that begin with # are skipped.
func readNames(path string) (names []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names, nil
}

// judge returns what is wrong with results: failures that are not expected, and expected ones that passed.
func judge(results []result, causes map[string]string) (wrong []string) {
	for _, r := range results {
		cause, known := causes[r.Name]
		switch {
		case r.State == failed && !known:
			wrong = append(wrong, r.Name+" failed")
		case r.State == passed && known:
			wrong = append(wrong, r.Name+" passed: take it out of expected.txt ("+cause+")")
		}
	}
	return wrong
}

// unknown returns those of names that are not among all: no run can judge them.
func unknown(names iter.Seq[string], all []string) (out []string) {
	for name := range names {
		if !slices.Contains(all, name) {
			out = append(out, name)
		}
	}
	return out
}
