package layout

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is what the import paths of this tree begin with.
const module = "github.com/tripod-cluster/tripod/"

// tree is a set of files by their slash-separated names.
type tree map[string]string

// top is the root of this checkout.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkout is this checkout's tree: what is under version control and what could
// be, but for what is ignored; everything that is not hidden where there is no git.
// It is read once for all tests.
func checkout(t *testing.T) tree {
	t.Helper()
	once.Do(func() { read = readCheckout(t) })
	if len(read) == 0 {
		t.Fatal("the checkout could not be read")
	}
	return read
}

var (
	once sync.Once
	read tree
)

func readCheckout(t *testing.T) tree {
	t.Helper()
	root := top(t)
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	names := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if err != nil {
		names = nil
		if err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && (p == ".git" || p == ".tripod" || p == "bin" || p == "debian") {
				return fs.SkipDir
			}
			if err == nil && d.Type().IsRegular() {
				names = append(names, p)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	tr := tree{}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(root, n))
		if errors.Is(err, fs.ErrNotExist) { // deleted, and not yet committed so
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		tr[n] = string(b)
	}
	if len(tr) < 100 || tr["ARCHITECTURE.md"] == "" {
		t.Fatalf("%s holds %d files: not this project", root, len(tr))
	}
	return tr
}

// names are the tree's files that end so, in order.
func (tr tree) names(suffix string) []string {
	var out []string
	for n := range tr {
		if strings.HasSuffix(n, suffix) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// goFile is the head of one file of Go.
type goFile struct {
	name, dir string
	test      bool
	pkg       string
	doc       string
	own       []string // imports of this module, without its name
	others    []string // imports of everybody else's, the standard library's too
}

func (tr tree) goFiles() ([]goFile, error) {
	var out []goFile
	for _, n := range tr.names(".go") {
		f, err := parser.ParseFile(token.NewFileSet(), n, tr[n], parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		g := goFile{name: n, dir: path.Dir(n), test: strings.HasSuffix(n, "_test.go"), pkg: f.Name.Name, doc: docOf(f)}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", n, err)
			}
			if o, ok := strings.CutPrefix(p, module); ok {
				g.own = append(g.own, o)
			} else {
				g.others = append(g.others, p)
			}
		}
		out = append(out, g)
	}
	return out, nil
}

func docOf(f *ast.File) string {
	if f.Doc == nil {
		return ""
	}
	return strings.TrimSpace(f.Doc.Text())
}

// within tells whether a path is one of the patterns: a path, a path with /* for
// everything one level below it, or with /... for itself and all below it.
func within(p string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool {
		if pre, ok := strings.CutSuffix(pat, "/..."); ok {
			return p == pre || strings.HasPrefix(p, pre+"/")
		}
		if pre, ok := strings.CutSuffix(pat, "/*"); ok {
			return path.Dir(p) == pre
		}
		return p == pat
	})
}
