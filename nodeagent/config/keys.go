package config

import (
	"encoding/json"
	"fmt"
	"slices"
)

// flatten turns a configuration into its top-level keys, those of sections with
// the section before them, and their values as text.
func flatten(c Config) map[string]string {
	b, err := json.Marshal(c)
	if err != nil {
		return nil
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil
	}
	out := map[string]string{}
	for k, v := range m {
		if section, ok := v.(map[string]any); ok && (k == "network" || k == "proxy") {
			for sk, sv := range section {
				out[k+"."+sk] = fmt.Sprint(sv)
			}
			continue
		}
		out[k] = fmt.Sprint(v)
	}
	return out
}

func keys(ms ...map[string]string) []string {
	var out []string
	for _, m := range ms {
		for k := range m {
			if !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
	}
	slices.Sort(out)
	return out
}
