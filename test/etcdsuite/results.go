package etcdsuite

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// expectation is one line of expected.txt.
type expectation struct{ test, why string }

// parseExpected reads lines of a test's name, blank space, and why it cannot
// pass. Empty lines and those that begin with # are skipped.
func parseExpected(r io.Reader) ([]expectation, error) {
	var out []expectation
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		test, why, _ := strings.Cut(line, " ")
		if why = strings.TrimSpace(why); why == "" {
			return nil, fmt.Errorf("expected.txt: %s: say why it cannot pass", test)
		}
		out = append(out, expectation{test, why})
	}
	return out, lines.Err()
}

// outcome is what the output of one test function tells.
type outcome struct {
	ran, skipped int
	failed       []string // those of which no part failed, so that each stands for itself
}

var resultLine = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) `)

// parseOutput reads what go test -v prints. A process that ended badly without
// naming a test that failed, for a panic or a timeout, failed as function.
func parseOutput(output []byte, function string, ended error) outcome {
	var o outcome
	for _, m := range resultLine.FindAllSubmatch(output, -1) {
		switch name := string(m[2]); string(m[1]) {
		case "FAIL":
			o.failed = append(o.failed, name)
			fallthrough
		case "PASS":
			o.ran++
		case "SKIP":
			o.skipped++
		}
	}
	all := o.failed
	o.failed = slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
	if ended != nil && len(o.failed) == 0 {
		o.failed = []string{function}
	}
	return o
}

// within tells whether name is test or a part of it.
func within(name, test string) bool { return name == test || strings.HasPrefix(name, test+"/") }

// judge returns what is wrong: failures that are not expected, and expectations
// about functions that ran, of which nothing failed.
func judge(functions, failed []string, expected []expectation) (wrong []string) {
	for _, f := range failed {
		if !slices.ContainsFunc(expected, func(e expectation) bool { return within(f, e.test) }) {
			wrong = append(wrong, f+" failed")
		}
	}
	for _, e := range expected {
		function, _, _ := strings.Cut(e.test, "/")
		if slices.Contains(functions, function) && !slices.ContainsFunc(failed, func(f string) bool { return within(f, e.test) }) {
			wrong = append(wrong, e.test+" passed: take it out of expected.txt")
		}
	}
	return wrong
}
