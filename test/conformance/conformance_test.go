package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	deployment = "[sig-apps] Deployment deployment should delete old replica sets [Conformance]"
	preemption = "[sig-scheduling] SchedulerPreemption [Serial] validates basic preemption works [Conformance]"
	secrets    = "[sig-storage] Secrets should be consumable (mode 0644) [Conformance]"
)

func TestParseListTakesTheTestsFromTheProse(t *testing.T) {
	got := parseList("The following spec names can be used:\n    x/deployment.go:12: " + deployment + "\n    ../y.go:3: " + secrets + "\n\n")
	if want := []string{deployment, secrets}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestChoose(t *testing.T) {
	all := []string{deployment, preemption, secrets, "[sig-apps] Deployment should do more"}
	for name, c := range map[string]struct {
		focus, skip string
		want        []string
	}{
		"conformance alone":   {"", "", []string{deployment, preemption, secrets}},
		"one group":           {`\[sig-(apps|storage)\]`, "", []string{deployment, secrets}},
		"not what is skipped": {"", `mode|\[Serial\]`, []string{deployment}},
	} {
		got, err := choose(all, c.focus, c.skip)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
	if _, err := choose(all, "(", ""); err == nil {
		t.Error("a wrong expression was taken")
	}
}

func TestSplitSetsSerialTestsApart(t *testing.T) {
	parallel, serial := split([]string{deployment, preemption})
	if !slices.Equal(parallel, []string{deployment}) || !slices.Equal(serial, []string{preemption}) {
		t.Errorf("parallel %q, serial %q", parallel, serial)
	}
}

func TestFocusFlagsQuoteNamesAndStayShort(t *testing.T) {
	if got := focusFlags([]string{secrets}); !slices.Equal(got, []string{`--focus=(\[sig-storage\] Secrets should be consumable \(mode 0644\) \[Conformance\])$`}) {
		t.Errorf("got %q", got)
	}
	long := focusFlags(slices.Repeat([]string{strings.Repeat("x", 250)}, 462))
	for _, f := range long {
		if len(f) >= 128<<10 {
			t.Errorf("an argument of %d bytes is more than a program takes", len(f))
		}
	}
}

func TestParseExpected(t *testing.T) {
	got, err := parseExpected(strings.NewReader("# all\n\nbecause there is no DNS\n" + secrets + "\nbecause it is slow\n" + deployment + "\n"))
	if err != nil || len(got) != 2 || got[secrets] != "there is no DNS" || got[deployment] != "it is slow" {
		t.Errorf("got %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"no cause": secrets,
		"twice":    "because x\n" + secrets + "\n" + secrets,
	} {
		if _, err := parseExpected(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestJudge(t *testing.T) {
	causes := map[string]string{secrets: "there is no volume"}
	for name, c := range map[string]struct {
		of   result
		want string
	}{
		"an expected failure":        {result{Name: secrets, State: failed}, ""},
		"an expected one passes":     {result{Name: secrets, State: passed}, "passed: take it out of expected.txt"},
		"an expected one is skipped": {result{Name: secrets, State: skipped}, ""},
		"another fails":              {result{Name: deployment, State: failed}, "failed"},
		"another passes":             {result{Name: deployment, State: passed}, ""},
	} {
		wrong := judge([]result{c.of}, causes)
		if c.want == "" && len(wrong) > 0 || c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.want)) {
			t.Errorf("%s: got %q, want %q", name, wrong, c.want)
		}
	}
}

func TestTheListsOfThisFolderAreWellFormed(t *testing.T) {
	if _, err := readExpected("expected.txt"); err != nil {
		t.Error(err)
	}
	quick, err := readNames("quick.txt")
	if err != nil {
		t.Fatal(err)
	}
	if chosen, err := choose(quick, "", ""); err != nil || len(chosen) != len(quick) {
		t.Errorf("quick.txt has lines that are no conformance tests: %d of %d are, %v", len(chosen), len(quick), err)
	}
}

func TestReadJUnitHasWhatRan(t *testing.T) {
	dir := t.TempDir()
	got, err := readJUnit(filepath.Join("testdata", "junit_01.xml"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("got %d results, want those of the three tests that ran: %+v", len(got), got)
	}
	if r := got[0]; r.Name != deployment || r.State != passed || r.Seconds != 12.5 {
		t.Errorf("passed: %+v", r)
	}
	r := got[1]
	if r.Name != preemption || r.State != failed || !strings.Contains(r.Message, "timed out waiting for the condition") {
		t.Errorf("failed: %+v", r)
	}
	if said, err := os.ReadFile(r.Log); err != nil || !strings.Contains(string(said), "STEP: Create pods") {
		t.Errorf("the log lacks what the test said: %v\n%s", err, said)
	}
	if r := got[2]; r.State != skipped || r.Message != "needs 4 nodes" {
		t.Errorf("skipped: %+v", r)
	}
}

func TestResumeRunsWhatFailedOrDidNotRun(t *testing.T) {
	dir := t.TempDir()
	if _, err := load(dir); err == nil || !strings.Contains(err.Error(), "RESUME") {
		t.Errorf("without an earlier run: %v", err)
	}
	rs := newRecords([]string{secrets, deployment, preemption})
	rs.put([]result{{Name: deployment, State: passed}, {Name: preemption, State: failed}})
	if err := rs.save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.unfinished(), []string{preemption, secrets}; !slices.Equal(got, want) {
		t.Errorf("to run: %q, want %q", got, want)
	}
	again.put([]result{{Name: preemption, State: passed}})
	if got := verdict(again); got != "conformance: 2 passed, 0 failed, 1 skipped of 3 selected" {
		t.Errorf("verdict %q", got)
	}
	if again[1].Name != preemption || again[1].Attempts != 2 {
		t.Errorf("the second attempt is not counted: %+v", again)
	}
}

func TestSummary(t *testing.T) {
	rs := newRecords([]string{secrets, deployment, preemption})
	rs.put([]result{{Name: deployment, State: failed, Seconds: 61, Message: "no replica set", Log: "/x/d.log"}, {Name: secrets, State: failed, Log: "/x/s.log"}, {Name: preemption, State: failed}})
	rs.put([]result{{Name: preemption, State: passed, Seconds: 4}})
	var page bytes.Buffer
	summarize(&page, rs, map[string]string{secrets: "there is no volume"})
	for _, want := range []string{
		"apps                      1        0        1        0        61\n",
		"FAILED (1), not expected:\n  " + deployment + "\n      61 s: no replica set\n      /x/d.log\n",
		"Known to fail (1), because there is no volume:\n  " + secrets,
		"Passed at the second attempt, alone (1):\n  " + preemption,
		"\nconformance: 1 passed, 2 failed, 0 skipped of 3 selected\n",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
	if !strings.HasSuffix(page.String(), " of 3 selected\n") {
		t.Error("the verdict is not the last line")
	}
}

func TestJUnitOfAllHoldsTheFailures(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "d.log")
	if err := os.WriteFile(log, []byte("STEP: x <&>"), 0o644); err != nil {
		t.Fatal(err)
	}
	rs := newRecords([]string{deployment, secrets})
	rs.put([]result{{Name: deployment, State: failed, Message: "no", Log: log}})
	path := filepath.Join(dir, "junit.xml")
	if err := rs.writeJUnit(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`tests="2"`, `failures="1"`, "STEP: x &lt;&amp;&gt;", `skipped message="not run"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the report lacks %q:\n%s", want, b)
		}
	}
}

func TestProgress(t *testing.T) {
	side := "------\n• [12.500 seconds]\n" + deployment + "\n/src/x.go:1\n  [sig-x] not a name\n------\n• [FAILED] [3.100 seconds]\n" + preemption + "\n------\nS [SKIPPED] [0.001 seconds]\n" + secrets + "\n"
	alone := deployment + "\n/src/x.go:1\n  STEP: y\n• [12.500 seconds]\n------\n" + preemption + "\n• [FAILED] [3.100 seconds]\n" + preemption + "\n------\n" + secrets + "\nS [SKIPPED] [0.001 seconds]\n" + secrets + "\n"
	for name, c := range map[string]struct {
		text     string
		streamed bool
	}{"side by side": {side, false}, "alone": {alone, true}} {
		var screen, log bytes.Buffer
		p := &progress{out: &screen, total: 3, streamed: c.streamed}
		if err := p.follow(strings.NewReader(c.text), &log); err != nil {
			t.Fatal(err)
		}
		if log.String() != c.text {
			t.Errorf("%s: the log is %q", name, log.String())
		}
		got := strings.Split(strings.TrimSpace(screen.String()), "\n")
		want := []string{
			"1 of 3, 0 failed: ok 12 s: [sig-apps] Deployment deployment should delete old replica sets",
			"2 of 3, 1 failed: FAILED 3 s: [sig-scheduling] SchedulerPreemption [Serial] validates basic preemption works",
			"3 of 3, 1 failed: SKIPPED 0 s: [sig-storage] Secrets should be consumable (mode 0644)",
		}
		if len(got) != len(want) {
			t.Fatalf("%s: got %q", name, got)
		}
		for i := range want {
			if !strings.HasSuffix(got[i], want[i]) {
				t.Errorf("%s: got %q, want %q", name, got[i], want[i])
			}
		}
	}
}
