package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// commandsOf reads a daemon's commands and flags from its sources.
func commandsOf(tr tree, daemon string) (commands, flags []string, err error) {
	for _, n := range tr.names(".go") {
		if !strings.HasPrefix(n, "cmd/"+daemon+"/") || strings.HasSuffix(n, "_test.go") {
			continue
		}
		c, f, err := commandLine(n, tr[n])
		if err != nil {
			return nil, nil, err
		}
		commands, flags = append(commands, c...), append(flags, f...)
	}
	return commands, flags, nil
}

// checkAdvice finds messages and documents that tell to run a command, in quotes,
// that the daemon does not have.
func checkAdvice(tr tree, daemons ...string) ([]string, error) {
	var bad []string
	for _, d := range daemons {
		commands, _, err := commandsOf(tr, d)
		if err != nil {
			return nil, err
		}
		advice := regexp.MustCompile("[`']" + d + ` ([a-z][a-z-]*)`)
		for _, n := range tr.names("") {
			if strings.HasSuffix(n, "_test.go") {
				continue
			}
			for _, m := range advice.FindAllStringSubmatch(tr[n], -1) {
				if !slices.Contains(commands, m[1]) && m[1] != "completion" {
					bad = append(bad, fmt.Sprintf("%s tells to run `%s %s`, which is no command", n, d, m[1]))
				}
			}
		}
	}
	return bad, nil
}

// checkManuals compares the manual page of each daemon with its command line:
// every command that is not hidden and every flag must be on the page, and the
// page may show no long flag that the program does not take.
func checkManuals(tr tree, daemons ...string) ([]string, error) {
	var bad []string
	for _, d := range daemons {
		page := strings.ReplaceAll(tr["packaging/man/"+d+".8"], `\-`, "-")
		commands, flags, err := commandsOf(tr, d)
		if err != nil {
			return nil, err
		}
		for _, c := range commands {
			if c != d && !strings.Contains(page, c) {
				bad = append(bad, fmt.Sprintf("%s(8) leaves out the command %s", d, c))
			}
		}
		known := map[string]bool{"help": true}
		for _, f := range flags {
			known[f] = true
			if !strings.Contains(page, "--"+f) {
				bad = append(bad, fmt.Sprintf("%s(8) leaves out the flag --%s", d, f))
			}
		}
		for _, w := range strings.FieldsFunc(page, func(r rune) bool { return !(r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }) {
			if f, ok := strings.CutPrefix(w, "--"); ok && !known[f] && !foreignFlags[f] {
				bad = append(bad, fmt.Sprintf("%s(8) has the flag --%s, which %s does not take", d, f, d))
			}
		}
	}
	return bad, nil
}

// foreignFlags are flags of other programs that the pages mention.
var foreignFlags = map[string]bool{
	"role": true, // controld token, on noded's page
}

// commandLine reads the names of cobra commands and of their flags from a file.
func commandLine(name, src string) (commands, flags []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("parse: %w", err)
	}
	text := func(e ast.Expr) string {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil {
				return s
			}
		}
		return ""
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if k, ok := kv.Key.(*ast.Ident); ok && k.Name == "Use" {
						commands = append(commands, strings.Fields(text(kv.Value) + " -")[0])
					}
				}
			}
		case *ast.CallExpr:
			// Flags().StringVarP(&v, "name", "n", …) and PersistentFlags().String("name", …)
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			for _, kind := range []string{"String", "Bool", "Int", "Int64", "Duration", "StringSlice", "StringArray"} {
				i := -1
				switch s.Sel.Name {
				case kind, kind + "P":
					i = 0
				case kind + "Var", kind + "VarP":
					i = 1
				}
				if i >= 0 && len(n.Args) > i+1 && text(n.Args[i]) != "" {
					flags = append(flags, text(n.Args[i]))
				}
			}
		}
		return true
	})
	return commands, flags, nil
}
