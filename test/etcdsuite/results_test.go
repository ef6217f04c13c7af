package etcdsuite

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseExpected(t *testing.T) {
	got, err := parseExpected(strings.NewReader("# a comment\n\nTestA/b   it looks into files\n"))
	if want := []expectation{{"TestA/b", "it looks into files"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseExpected(strings.NewReader("TestA\n")); err == nil {
		t.Error("a test without a reason was taken")
	}
}

func TestParseOutput(t *testing.T) {
	for _, c := range []struct {
		name, output string
		ended        error
		want         []string
	}{
		{"all pass", "--- PASS: TestA (0.1s)\n    --- SKIP: TestA/x (0.0s)\n", nil, nil},
		{"a part fails", "    --- FAIL: TestA/x (0.1s)\n        --- FAIL: TestA/x/1 (0.1s)\n--- FAIL: TestA (0.1s)\n", errors.New("status 1"), []string{"TestA/x/1"}},
		{"the process dies", "=== RUN TestA\npanic: x\n", errors.New("status 2"), []string{"TestA"}},
	} {
		if got := parseOutput([]byte(c.output), "TestA", c.ended); !slices.Equal(got.failed, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got.failed, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	expected := []expectation{{"TestA/x", "why"}, {"TestB", "why"}, {"TestNotRun", "why"}}
	if wrong := judge([]string{"TestA", "TestB", "TestC"}, []string{"TestA/x/1", "TestB"}, expected); wrong != nil {
		t.Errorf("as expected, and yet: %v", wrong)
	}
	want := []string{"TestA/y failed", "TestA/x passed: take it out of expected.txt", "TestB passed: take it out of expected.txt"}
	if wrong := judge([]string{"TestA", "TestB"}, []string{"TestA/y"}, expected); !slices.Equal(wrong, want) {
		t.Errorf("got %q", wrong)
	}
}
