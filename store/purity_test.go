package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is everything this package may import; nothing in it knows a
// clock, randomness, files, processes or the network.
var mayImport = []string{
	"bytes", "cmp", "context", "encoding/base64", "encoding/binary", "errors", "fmt", "hash/crc32", "io", "math", "slices", "sort",
	"sync", "sync/atomic", "unsafe",
	"github.com/tidwall/btree",
	"go.etcd.io/etcd/api/v3/authpb", "go.etcd.io/etcd/api/v3/etcdserverpb", "go.etcd.io/etcd/api/v3/membershippb", "go.etcd.io/etcd/api/v3/mvccpb", "go.etcd.io/etcd/api/v3/v3rpc/rpctypes",
	"google.golang.org/grpc/codes", "google.golang.org/grpc/status", "google.golang.org/protobuf/proto",
}

// mapLoops are the functions that may range over a map, because the order
// does not matter there: they wake or collect watchers.
var mapLoops = []string{"all"}

// The package is pure: see its documentation.
func TestPurity(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if files[name], err = parser.ParseFile(fset, name, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 10 {
		t.Fatalf("only %d files were found", len(files))
	}

	// Names declared anywhere in the package with a map type.
	maps := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if _, ok := n.Type.(*ast.MapType); ok {
					for _, name := range n.Names {
						maps[name.Name] = true
					}
				}
			case *ast.ValueSpec:
				if _, ok := n.Type.(*ast.MapType); ok {
					for _, name := range n.Names {
						maps[name.Name] = true
					}
				}
			case *ast.AssignStmt:
				for i, r := range n.Rhs {
					if i < len(n.Lhs) && isMapValue(r) {
						if id, ok := n.Lhs[i].(*ast.Ident); ok {
							maps[id.Name] = true
						}
					}
				}
			}
			return true
		})
	}
	if !maps["points"] {
		t.Fatal("the test does not see the maps of the watch index")
	}

	for name, f := range files {
		for _, imp := range f.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if !slices.Contains(mayImport, path) {
				t.Errorf("%s imports %s, which the state machine must not", name, path)
			}
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: %s starts a goroutine", fset.Position(n.Pos()), fn.Name.Name)
				case *ast.SelectStmt:
					if !hasDefault(n) {
						t.Errorf("%s: %s waits", fset.Position(n.Pos()), fn.Name.Name)
					}
				case *ast.RangeStmt:
					if ranged := lastName(n.X); maps[ranged] && !slices.Contains(mapLoops, fn.Name.Name) {
						t.Errorf("%s: %s ranges over the map %s, whose order differs from peer to peer", fset.Position(n.Pos()), fn.Name.Name, ranged)
					}
				}
				return true
			})
		}
	}
}

func isMapValue(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		_, ok := e.Type.(*ast.MapType)
		return ok
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "make" && len(e.Args) > 0 {
			_, ok := e.Args[0].(*ast.MapType)
			return ok
		}
	}
	return false
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func hasDefault(s *ast.SelectStmt) bool {
	return slices.ContainsFunc(s.Body.List, func(c ast.Stmt) bool { return c.(*ast.CommClause).Comm == nil })
}
