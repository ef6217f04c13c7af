package controllers

import (
	"slices"
	"strings"
	"testing"
)

// upstream are the controllers that Kubernetes 1.37's controller manager runs when
// nothing is configured, and the rooms here that do their work.
var upstream = map[string]string{
	"certificatesigningrequest-approving-controller":                 "csr",
	"certificatesigningrequest-cleaner-controller":                   "csr",
	"certificatesigningrequest-signing-controller":                   "csr",
	"clusterrole-aggregation-controller":                             "clusterroleaggregation",
	"cronjob-controller":                                             "cronjob",
	"daemonset-controller":                                           "daemonset",
	"deployment-controller":                                          "deployment",
	"device-taint-eviction-controller":                               "devicetainteviction",
	"disruption-controller":                                          "disruption",
	"endpoints-controller":                                           "endpoints",
	"endpointslice-controller":                                       "endpointslice",
	"endpointslice-mirroring-controller":                             "endpointslicemirroring",
	"ephemeral-volume-controller":                                    "ephemeralvolume",
	"garbage-collector-controller":                                   "garbagecollector",
	"horizontal-pod-autoscaler-controller":                           "horizontalpodautoscaler",
	"job-controller":                                                 "job",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": "clustertrustbundle",
	"legacy-serviceaccount-token-cleaner-controller":                 "legacytokencleaner",
	"namespace-controller":                                           "namespace",
	"node-ipam-controller":                                           "nodeipam",
	"node-lifecycle-controller":                                      "nodelifecycle",
	"persistentvolume-attach-detach-controller":                      "attachdetach",
	"persistentvolume-binder-controller":                             "persistentvolume",
	"persistentvolume-expander-controller":                           "volumeexpansion",
	"persistentvolume-protection-controller":                         "persistentvolumeprotection",
	"persistentvolumeclaim-protection-controller":                    "persistentvolumeclaimprotection",
	"pod-garbage-collector-controller":                               "podgc",
	"podcertificaterequest-cleaner-controller":                       "podcertificaterequest",
	"replicaset-controller":                                          "replicaset",
	"replicationcontroller-controller":                               "replicationcontroller",
	"resourceclaim-controller":                                       "resourceclaim",
	"resourcequota-controller":                                       "resourcequota",
	"root-ca-certificate-publisher-controller":                       "rootca",
	"service-cidr-controller":                                        "servicecidr",
	"serviceaccount-controller":                                      "serviceaccount",
	"serviceaccount-token-controller":                                "serviceaccounttoken",
	"statefulset-controller":                                         "statefulset",
	"storage-version-migrator-controller":                            "storageversionmigration",
	"taint-eviction-controller":                                      "tainteviction",
	"ttl-after-finished-controller":                                  "ttlafterfinished",
	"ttl-controller":                                                 "nodettl",
	"validatingadmissionpolicy-status-controller":                    "validatingadmissionpolicystatus",
	"volumeattributesclass-protection-controller":                    "volumeattributesclassprotection",
}

// own has no like in the controller manager's defaults.
var own = []string{"tokencleaner"}

func TestEveryControllerHasARoom(t *testing.T) {
	var rooms []string
	for _, r := range registrations {
		if slices.Contains(rooms, r.name) {
			t.Errorf("%s is there twice", r.name)
		}
		rooms = append(rooms, r.name)
	}
	used := slices.Clone(own)
	for name, room := range upstream {
		if !slices.Contains(rooms, room) {
			t.Errorf("nothing does the work of %s: there is no %s", name, room)
		}
		used = append(used, room)
	}
	for _, room := range rooms {
		if !slices.Contains(used, room) {
			t.Errorf("%s stands in no list", room)
		}
	}
	for kind, room := range explained {
		if !slices.Contains(rooms, room) {
			t.Errorf("%s would be explained by %s, which is not there", kind, room)
		}
	}
}

func TestNamesOfControllersAreChecked(t *testing.T) {
	if err := CheckNames([]string{"deployment", "job"}); err != nil {
		t.Error(err)
	}
	err := CheckNames([]string{"deployment", "deplyment"})
	if err == nil || !strings.Contains(err.Error(), `no controller "deplyment"`) || !strings.Contains(err.Error(), "there are: attachdetach, ") {
		t.Errorf("a name that is none: %v", err)
	}
}
