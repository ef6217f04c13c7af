// Package env makes the environment of a container: literal values, fields of
// the pod, keys of ConfigMaps and Secrets, variables of Services, and the
// $(NAME) references in values, commands and arguments.
package env

import "strings"

// Expand replaces $(NAME) in s by what lookup returns for NAME. $$ is a
// literal $, so $$(NAME) stays $(NAME); a reference that lookup does not know
// stays as it is, and so does a $ that begins nothing.
func Expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				out.WriteString(s[i : i+2])
				i++
				continue
			}
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[i : i+3+end])
			}
			i += 2 + end
		default:
			out.WriteByte('$')
			out.WriteByte(s[i+1])
			i++
		}
	}
	return out.String()
}

// ExpandAll expands each of list.
func ExpandAll(list []string, lookup func(string) (string, bool)) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = Expand(s, lookup)
	}
	return out
}
