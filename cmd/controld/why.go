package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

func whyCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "why KIND [NAMESPACE/]NAME", Short: "Say what an object waits for, and who decided it", Args: cobra.ExactArgs(2),
		Long:    "why asks the controller that owns an object what it waits for, and the scheduler for a pod. KIND\nis deployment, statefulset, job, pvc, namespace or pod. A name without a namespace is one of the namespace\ndefault. Both run on the leader: run it there (`controld status` names it).",
		Example: "  controld why deployment shop/web\n  controld why pvc shop/data-db-0\n  controld why namespace shop",
		RunE: func(c *cobra.Command, args []string) error {
			namespace, name := "default", args[1]
			if ns, n, ok := strings.Cut(args[1], "/"); ok {
				namespace, name = ns, n
			}
			if k := strings.ToLower(args[0]); k == "ns" || strings.HasPrefix(k, "namespace") {
				namespace = ""
			}
			why, err := peer.NewAdmin(peer.AdminSocket).Why(c.Context(), args[0], namespace, name)
			if err != nil {
				return err
			}
			switch output {
			case "json":
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(why)
			case "":
				return printWhy(c.OutOrStdout(), why)
			}
			return fmt.Errorf("-o %s is not known (known: json)", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	return c
}

func printWhy(out io.Writer, w peer.Why) error {
	name := w.Name
	if w.Namespace != "" {
		name = w.Namespace + "/" + name
	}
	if len(w.Waits) == 0 {
		_, err := fmt.Fprintf(out, "%s %s waits for nothing (%s)\n", w.Kind, name, w.By)
		return err
	}
	fmt.Fprintf(out, "%s %s waits, says %s:\n\n", w.Kind, name, w.By)
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "WAITS FOR\tDECIDED BY")
	for _, wait := range w.Waits {
		fmt.Fprintf(t, "%s\t%s\n", strings.TrimSpace(wait.For), wait.By)
	}
	return t.Flush()
}
