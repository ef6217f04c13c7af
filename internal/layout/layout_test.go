package layout

import (
	"net/url"
	"os/exec"
	"strings"
	"testing"
)

// holds fails the test with each place that breaks a rule.
func holds(t *testing.T, bad []string, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
}

func TestImportsGoDownwards(t *testing.T) {
	bad, err := checkImports(checkout(t))
	holds(t, bad, err)
}

func TestPackagesSayWhatTheyAre(t *testing.T) {
	bad, err := checkPackages(checkout(t))
	holds(t, bad, err)
}

func TestScriptsStopAtErrors(t *testing.T) { holds(t, checkScripts(checkout(t)), nil) }

func TestLinksOfDocumentsLead(t *testing.T) { holds(t, checkLinks(checkout(t)), nil) }

func TestDocumentsNameMakeTargetsThatExist(t *testing.T) {
	holds(t, checkMakeTargets(checkout(t)), nil)
}

func TestDocumentsNameTestsThatExist(t *testing.T) { holds(t, checkTestNames(checkout(t)), nil) }

func TestTroubleshootingQuotesMessagesThatExist(t *testing.T) {
	holds(t, checkMessages(checkout(t)), nil)
}

func TestArchitectureNamesEveryFolder(t *testing.T) { holds(t, checkMap(checkout(t)), nil) }

func TestManualsMatchCommandLines(t *testing.T) {
	bad, err := checkManuals(checkout(t), "controld", "noded")
	holds(t, bad, err)
}

func TestAdviceNamesCommandsThatExist(t *testing.T) {
	bad, err := checkAdvice(checkout(t), "controld", "noded")
	holds(t, bad, err)
}

// TestNoTraceOfTheMachine: the tree names neither the module proxy that this
// machine uses, nor where this checkout or Go's caches are on it.
func TestNoTraceOfTheMachine(t *testing.T) {
	out, err := exec.Command("go", "env", "GOPROXY", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	words := traces(strings.Split(string(out), "\n"), top(t))
	if len(words) == 0 {
		t.Fatal("nothing to look for")
	}
	holds(t, checkTraces(checkout(t), words), nil)
}

// traces are the host names in values of Go's environment, its directories, and
// the folder of the checkout with its parent.
func traces(env []string, top string) []string {
	var out []string
	for _, v := range env {
		for _, w := range strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(",| ", r) }) {
			if u, err := url.Parse(w); err == nil && u.Hostname() != "" {
				out = append(out, u.Hostname())
			} else if strings.HasPrefix(w, "/") && strings.Count(w, "/") > 1 {
				out = append(out, w)
			}
		}
	}
	// A short path, such as /src, could be part of another.
	if strings.Count(top, "/") > 1 {
		out = append(out, top+"/", top[:strings.LastIndex(top, "/")]+"/shared")
	}
	return out
}
