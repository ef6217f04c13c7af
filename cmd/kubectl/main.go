// Command kubectl is Kubernetes' own kubectl, built from the k8s.io/kubectl module at the release that controld
// serves, so that a host without a way out gets a client that matches its cluster.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // credential plugins a kubeconfig may name
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	// -v must already count while plugins and the kuberc file are read, which is before flags are parsed.
	if v := kubectl.GetLogVerbosity(os.Args); v != "" {
		_, _ = logs.GlogSetter(v)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
