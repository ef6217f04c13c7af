package deployment

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations that kubectl rollout reads.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history"
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
)

// historyLimit bounds the revision history in bytes; upstream's value.
const historyLimit = 2000

// own are the annotations that are not copied between Deployment and ReplicaSet.
var own = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	revisionAnnotation:                 true,
	historyAnnotation:                  true,
	desiredAnnotation:                  true,
	maxAnnotation:                      true,
	appsv1.DeprecatedRollbackTo:        true,
}

func revision(o metav1.Object) int64 {
	n, err := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func maxRevision(sets []*appsv1.ReplicaSet) (n int64) {
	for _, rs := range sets {
		n = max(n, revision(rs))
	}
	return n
}

func intAnnotation(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[key], 10, 32)
	if err != nil || n < 0 {
		return 0, false
	}
	return int32(n), true
}

// annotate copies the Deployment's annotations to its new ReplicaSet and gives
// that revision rev, when its own is lower: a rollback makes an old ReplicaSet
// the newest. It changes rs.
func annotate(d *appsv1.Deployment, rs *appsv1.ReplicaSet, rev int64) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !own[k] {
			rs.Annotations[k] = v
		}
	}
	before := rs.Annotations[revisionAnnotation]
	if revision(rs) >= rev {
		return
	}
	rs.Annotations[revisionAnnotation] = strconv.FormatInt(rev, 10)
	if before == "" {
		return
	}
	var history []string
	if h := rs.Annotations[historyAnnotation]; h != "" {
		history = strings.Split(h, ",")
	}
	history = append(history, before)
	for len(history) > 1 && len(strings.Join(history, ",")) > historyLimit {
		history = history[1:]
	}
	rs.Annotations[historyAnnotation] = strings.Join(history, ",")
}

// setSizeAnnotations notes the Deployment's size for a later proportional
// scaling. It changes rs.
func setSizeAnnotations(rs *appsv1.ReplicaSet, desired, most int32) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[desiredAnnotation] = strconv.Itoa(int(desired))
	rs.Annotations[maxAnnotation] = strconv.Itoa(int(most))
}
