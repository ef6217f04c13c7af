package layout

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxLines is how long a file of Go may be: beyond it nobody holds it in mind.
const maxLines = 900

// vague names say nothing of what a package does.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared"}

func checkPackages(tr tree) ([]string, error) {
	files, err := tr.goFiles()
	if err != nil {
		return nil, err
	}
	docs := map[string]string{} // directory to package comment
	names := map[string]string{}
	var bad []string
	for _, f := range files {
		if f.doc != "" && !strings.HasSuffix(f.pkg, "_test") {
			docs[f.dir] = f.doc
		} else if _, ok := docs[f.dir]; !ok {
			docs[f.dir] = ""
		}
		if !strings.HasSuffix(f.pkg, "_test") {
			names[f.dir] = f.pkg
		}
		if n := strings.Count(tr[f.name], "\n"); n > maxLines && !strings.HasPrefix(path.Base(f.name), "zz_") {
			bad = append(bad, fmt.Sprintf("%s has %d lines: split it by idea (at most %d)", f.name, n, maxLines))
		}
		for _, part := range append(strings.Split(f.dir, "/"), f.pkg) {
			if slices.Contains(vague, strings.TrimSuffix(part, "_test")) {
				bad = append(bad, fmt.Sprintf("%s: the name %s says nothing: name the package after what it does", f.name, part))
				break
			}
		}
	}
	for dir, doc := range docs {
		want := "Package " + names[dir] + " "
		if names[dir] == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(doc, want) {
			bad = append(bad, fmt.Sprintf("%s has no package comment that begins with %q", dir, want))
		}
	}
	slices.Sort(bad)
	return bad, nil
}

// checkTraces finds words, such as host names and paths, that belong to the
// machine a thing was made on.
func checkTraces(tr tree, words []string) []string {
	var bad []string
	for _, n := range tr.names("") {
		for _, w := range words {
			if i := strings.Index(tr[n], w); i >= 0 {
				bad = append(bad, fmt.Sprintf("%s:%d names %q, which means nothing on another machine", n, 1+strings.Count(tr[n][:i], "\n"), w))
			}
		}
	}
	return bad
}

var (
	shellMark = regexp.MustCompile(`^#!\s*\S*(/|\s)(ba|da|k)?sh\b`)
	setLine   = regexp.MustCompile(`(?m)^set -([a-z]+)`)
)

// laxScripts need not stop at an error, or at a variable that is not set.
var laxScripts = map[string]string{ // pattern: what it may leave out, and why
	"packaging/deb/*": "u", // called by dpkg with fewer arguments than some snippets of debhelper read
	".ci/all":         "e", // goes on after a failed step and counts it
	".ci/gotest":      "e", // looks at the exit code of what it runs
}

func checkScripts(tr tree) []string {
	var bad []string
	for _, n := range tr.names("") {
		if !shellMark.MatchString(tr[n]) && !strings.HasSuffix(n, ".sh") {
			continue
		}
		need := "eu"
		for pat, not := range laxScripts {
			if within(n, []string{pat}) {
				need = strings.ReplaceAll(need, not, "")
			}
		}
		m := setLine.FindStringSubmatch(tr[n])
		for _, c := range need {
			if m == nil || !strings.ContainsRune(m[1], c) {
				bad = append(bad, fmt.Sprintf("%s does not begin with set -%s", n, need))
				break
			}
		}
	}
	return bad
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// checkLinks finds links of documents to files that are not there.
func checkLinks(tr tree) []string {
	dirs := map[string]bool{".": true}
	for n := range tr {
		for d := path.Dir(n); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	var bad []string
	for _, n := range tr.names(".md") {
		for _, m := range link.FindAllStringSubmatch(tr[n], -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			p := path.Join(path.Dir(n), to)
			if _, ok := tr[p]; !ok && !dirs[p] {
				bad = append(bad, fmt.Sprintf("%s links to %s, which is not there", n, m[1]))
			}
		}
	}
	return bad
}

var (
	makeCall   = regexp.MustCompile("`make ([a-z0-9-]+)[^`]*`|(?m)^    make ([a-z0-9-]+)")
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+):[^=]`)
)

// checkMakeTargets finds documents that tell to make what the Makefile does not know.
func checkMakeTargets(tr tree) []string {
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(tr["Makefile"], -1) {
		targets[m[1]] = true
	}
	var bad []string
	for _, n := range tr.names(".md") {
		for _, m := range makeCall.FindAllStringSubmatch(tr[n], -1) {
			if t := m[1] + m[2]; !targets[t] {
				bad = append(bad, fmt.Sprintf("%s says `make %s`, which the Makefile does not know", n, t))
			}
		}
	}
	return bad
}

var (
	testName = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]+\b`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]+)\(`)
)

// checkTestNames finds documents that speak of tests that are not there.
func checkTestNames(tr tree) []string {
	there := map[string]bool{}
	for _, n := range tr.names("_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(tr[n], -1) {
			there[m[1]] = true
		}
	}
	var bad []string
	for _, n := range tr.names(".md") {
		for _, t := range testName.FindAllString(tr[n], -1) {
			if !there[t] {
				bad = append(bad, fmt.Sprintf("%s names the test %s, which is not there", n, t))
			}
		}
	}
	return bad
}

// checkMessages finds messages that docs/troubleshooting.md explains and that no
// program gives any more. They are in the first column of tables whose head ends in
// "says"; what stands between two … must be in a program's source, word for word.
func checkMessages(tr tree) []string {
	var source strings.Builder
	for _, n := range tr.names(".go") {
		if !strings.HasSuffix(n, "_test.go") {
			source.WriteString(strings.ReplaceAll(tr[n], `\"`, `"`))
		}
	}
	said := source.String()
	var bad []string
	says := false
	for _, line := range strings.Split(tr["docs/troubleshooting.md"], "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.HasPrefix(cells[1], "---") {
			says = says && len(cells) >= 3
			continue
		}
		first := strings.TrimSpace(cells[1])
		if strings.HasSuffix(first, "says") {
			says = true
			continue
		}
		if !says {
			continue
		}
		for _, part := range strings.FieldsFunc(first, func(r rune) bool { return r == '…' || r == ';' }) {
			if part = strings.Trim(part, " :,."); len(part) > 3 && !strings.Contains(said, part) {
				bad = append(bad, fmt.Sprintf("docs/troubleshooting.md explains %q, which no program says", part))
			}
		}
	}
	return bad
}

// checkMap finds top-level folders with Go in them that ARCHITECTURE.md leaves out.
func checkMap(tr tree) []string {
	seen := map[string]bool{}
	var bad []string
	for _, n := range tr.names(".go") {
		dir, _, nested := strings.Cut(n, "/")
		if !nested || seen[dir] {
			continue
		}
		seen[dir] = true
		if !strings.Contains(tr["ARCHITECTURE.md"], "`"+dir+"/") {
			bad = append(bad, fmt.Sprintf("ARCHITECTURE.md says nothing of %s/", dir))
		}
	}
	return bad
}
