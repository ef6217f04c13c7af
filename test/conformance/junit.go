package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/onsi/ginkgo/v2/reporters"
)

// readJUnit returns the tests that ran or skipped themselves in a report of e2e.test. The report also lists every test
// that was not selected, as skipped without a reason. What each failed test said goes to a file in dir.
func readJUnit(path, dir string) ([]result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report reporters.JUnitTestSuites
	if err := xml.Unmarshal(b, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var out []result
	for _, suite := range report.TestSuites {
		for _, c := range suite.TestCases {
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			if !isTest {
				continue
			}
			r := result{Name: name, State: passed, Seconds: c.Time}
			said := ""
			switch {
			case c.Skipped != nil:
				reason, ran := strings.CutPrefix(c.Skipped.Message, "skipped - ")
				if !ran {
					continue
				}
				r.State, r.Message = skipped, reason
			case c.Failure != nil:
				r.State, said = failed, c.Failure.Description
			case c.Error != nil:
				r.State, said = failed, c.Error.Type+": "+c.Error.Message+"\n"+c.Error.Description
			}
			if r.State == failed {
				r.Message = firstWords(said)
				r.Log = filepath.Join(dir, logName(name))
				if err := os.WriteFile(r.Log, []byte(name+"\n\n"+said+"\n\n"+c.SystemErr+"\n"+c.SystemOut), 0o644); err != nil {
					return nil, err
				}
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// firstWords is a failure's text as one line that fits a page.
func firstWords(said string) string {
	line := strings.Join(strings.Fields(said), " ")
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + "…"
	}
	return line
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// logName is a file name for a test: its words, as far as a file name may be long.
func logName(name string) string {
	s := strings.Trim(notInNames.ReplaceAllString(strings.ReplaceAll(name, conformanceTag, ""), "-"), "-")
	if len(s) > 180 {
		s = s[:180]
	}
	return s + ".log"
}

// writeJUnit writes the results as one report.
func (rs records) writeJUnit(path string) error {
	suite := reporters.JUnitTestSuite{Name: "Kubernetes conformance", Package: "test/conformance", Tests: len(rs), Failures: rs.count(failed), Skipped: rs.count(skipped)}
	for _, r := range rs {
		c := reporters.JUnitTestCase{Name: r.Name, Classname: "sig-" + sig(r.Name), Status: string(r.State), Time: r.Seconds}
		suite.Time += r.Seconds
		switch r.State {
		case failed:
			said, err := os.ReadFile(r.Log)
			if err != nil {
				return err
			}
			c.Failure = &reporters.JUnitFailure{Type: "failed", Message: r.Message, Description: strings.ToValidUTF8(string(said), "?")}
		case skipped:
			c.Skipped = &reporters.JUnitSkipped{Message: r.Message}
		}
		suite.TestCases = append(suite.TestCases, c)
	}
	b, err := xml.MarshalIndent(reporters.JUnitTestSuites{
		Tests: suite.Tests, Failures: suite.Failures, Time: suite.Time, TestSuites: []reporters.JUnitTestSuite{suite},
	}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(xml.Header), b...), 0o644)
}
