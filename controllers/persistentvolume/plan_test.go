package persistentvolume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

func newClaim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid-of-" + "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func ofStorageClass(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func boundTo(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = name
		c.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
	}
}

func newVolume(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}},
		},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func claimedBy(name, uid string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: "uid-of-claim"}
		if uid != "same" {
			v.Spec.ClaimRef.UID = "uid-of-another"
		}
	}
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

func TestDecideClaim(t *testing.T) {
	csi := class("fast", "csi.example.com", storagev1.VolumeBindingImmediate)
	late := class("late", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer)
	v := newVolume("v", "1Gi")
	chosen := func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{volume.AnnSelectedNode: "n1"}
	}
	none := ""
	for name, x := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		s     surroundings
		want  string // "bind NAME", "assign NAME", "provision NAME", or "PHASE REASON"
	}{
		"a match":                             {newClaim("c"), surroundings{match: v}, "bind v"},
		"no class at all":                     {newClaim("c"), surroundings{}, "Pending FailedBinding"},
		"a default class since":               {newClaim("c"), surroundings{defaultClass: csi}, "assign fast"},
		"no class on purpose":                 {newClaim("c", ofStorageClass(none)), surroundings{defaultClass: csi}, "Pending FailedBinding"},
		"an external provisioner":             {newClaim("c", ofStorageClass("fast")), surroundings{class: csi}, "provision fast"},
		"a class that is not there":           {newClaim("c", ofStorageClass("fast")), surroundings{}, "Pending ProvisioningFailed"},
		"no first consumer":                   {newClaim("c", ofStorageClass("late")), surroundings{class: late}, "Pending WaitForFirstConsumer"},
		"a first consumer without a node":     {newClaim("c", ofStorageClass("late")), surroundings{class: late, unscheduled: []string{"p"}}, "Pending WaitForPodScheduled"},
		"a node chosen for the consumer":      {newClaim("c", ofStorageClass("late"), chosen), surroundings{class: late}, "provision late"},
		"a class that provisions nothing":     {newClaim("c", ofStorageClass("x")), surroundings{class: class("x", "kubernetes.io/no-provisioner", storagev1.VolumeBindingImmediate)}, "Pending ProvisioningFailed"},
		"a provisioner that is gone":          {newClaim("c", ofStorageClass("x")), surroundings{class: class("x", "kubernetes.io/glusterfs", storagev1.VolumeBindingImmediate)}, "Pending ProvisioningFailed"},
		"a provisioner that moved":            {newClaim("c", ofStorageClass("x")), surroundings{class: class("x", "kubernetes.io/aws-ebs", storagev1.VolumeBindingImmediate)}, "provision x"},
		"a named volume that is not there":    {newClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), surroundings{}, "Pending"},
		"a named volume that is free":         {newClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), surroundings{named: v}, "bind v"},
		"a named volume that is too small":    {newClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), surroundings{named: newVolume("v", "1Mi")}, "Pending VolumeMismatch"},
		"a named volume promised to it":       {newClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), surroundings{named: newVolume("v", "1Gi", claimedBy("c", "same"))}, "bind v"},
		"a named volume promised to another":  {newClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), surroundings{named: newVolume("v", "1Gi", claimedBy("d", ""))}, "Pending FailedBinding"},
		"bound":                               {newClaim("c", boundTo("v")), surroundings{named: newVolume("v", "1Gi", claimedBy("c", "same"))}, "bind v"},
		"bound, the volume gone":              {newClaim("c", boundTo("v")), surroundings{}, "Lost ClaimLost"},
		"bound, the name of the volume gone":  {newClaim("c", boundTo("")), surroundings{}, "Lost ClaimLost"},
		"bound, the volume is another's":      {newClaim("c", boundTo("v")), surroundings{named: newVolume("v", "1Gi", claimedBy("c", ""))}, "Lost ClaimMisbound"},
		"bound, the volume forgot":            {newClaim("c", boundTo("v")), surroundings{named: v}, "bind v"},
		"bound: no size or class is compared": {newClaim("c", boundTo("v"), ofStorageClass("y")), surroundings{named: newVolume("v", "1Mi", claimedBy("c", "same"))}, "bind v"},
	} {
		step := decideClaim(x.claim, x.s)
		got := string(step.phase)
		switch {
		case step.bind != nil:
			got = "bind " + step.bind.Name
		case step.assign != "":
			got = "assign " + step.assign
		case step.provision != nil:
			got = "provision " + step.provision.Name
		case step.notice != nil:
			got += " " + step.notice.reason
		}
		if got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
		if said := step.waits != ""; said != (step.bind == nil && step.assign == "") {
			t.Errorf("%s: waits for %q", name, step.waits)
		}
	}
}

func TestDecideVolume(t *testing.T) {
	released := func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }
	policy := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
	}
	note := func(k, val string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { metav1.SetMetaDataAnnotation(&v.ObjectMeta, k, val) }
	}
	csi := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com"}}
	}
	promised := func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c"}
	}
	mine := claimedBy("c", "same")
	other := newClaim("c", boundTo("another"))
	for name, x := range map[string]struct {
		v     *corev1.PersistentVolume
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		"free":                               {newVolume("v", "1Gi"), nil, "Available"},
		"promised to a claim by its name":    {newVolume("v", "1Gi", promised), nil, "Available claim"},
		"bound":                              {newVolume("v", "1Gi", mine), newClaim("c", boundTo("v")), "Bound"},
		"half bound":                         {newVolume("v", "1Gi", mine), newClaim("c"), "claim"},
		"kept":                               {newVolume("v", "1Gi", mine), nil, "Released"},
		"to be deleted by its provisioner":   {newVolume("v", "1Gi", mine, csi, policy("Delete")), nil, "Released"},
		"provisioned, to be deleted":         {newVolume("v", "1Gi", mine, policy("Delete"), note(volume.AnnDynamicallyProvisioned, "csi.example.com")), nil, "Released"},
		"to be deleted by nobody, first":     {newVolume("v", "1Gi", mine, policy("Delete")), nil, "Released"},
		"to be deleted by nobody":            {newVolume("v", "1Gi", mine, policy("Delete"), released), nil, "Failed VolumeFailedDelete"},
		"to be recycled":                     {newVolume("v", "1Gi", mine, policy("Recycle"), released), nil, "Failed VolumeFailedRecycle"},
		"failed stays":                       {newVolume("v", "1Gi", mine, policy("Recycle"), func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed }), nil, ""},
		"its claim took another":             {newVolume("v", "1Gi", mine), other, "unbind"},
		"provisioned, and not taken":         {newVolume("v", "1Gi", mine, policy("Delete"), note(volume.AnnDynamicallyProvisioned, "csi.example.com")), other, "Released"},
		"released, and back to free by hand": {newVolume("v", "1Gi", released), nil, "Available"},
	} {
		step := decideVolume(x.v, x.claim)
		got := []string{}
		if step.phase != "" {
			got = append(got, string(step.phase))
		}
		if step.notice != nil {
			got = append(got, step.notice.reason)
		}
		if step.claim {
			got = append(got, "claim")
		}
		if step.unbind {
			got = append(got, "unbind")
		}
		if s := strings.Join(got, " "); s != x.want {
			t.Errorf("%s: %q, want %q", name, s, x.want)
		}
	}
}

func TestDefaultClass(t *testing.T) {
	made := func(name, isDefault string, at time.Time) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at), Annotations: map[string]string{defaultClassAnnotation: isDefault}}}
	}
	now := time.Now()
	got := defaultClass([]*storagev1.StorageClass{made("old", "true", now.Add(-time.Hour)), made("b", "true", now), made("a", "true", now), made("newer", "false", now.Add(time.Hour))})
	if got == nil || got.Name != "a" {
		t.Errorf("default class %v, want the newest, first by name", got)
	}
	if got := defaultClass([]*storagev1.StorageClass{made("x", "false", now)}); got != nil {
		t.Errorf("default class %v of none", got)
	}
}
