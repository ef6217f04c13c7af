package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

type authorizer struct {
	client kubernetes.Interface
	node   string
	cache  *ttlCache[string, bool]
}

func newAuthorizer(client kubernetes.Interface, node string) *authorizer {
	return &authorizer{client: client, node: node, cache: newTTLCache[string, bool](8192)}
}

// subresources of nodes that permit a path, any of them: the fine-grained one
// first, as a kubelet has them (Kubernetes documentation, "Kubelet
// authentication/authorization").
func subresources(path string) []string {
	under := func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }
	switch {
	case under("/stats"):
		return []string{"stats"}
	case under("/metrics"):
		return []string{"metrics"}
	case under("/logs"):
		return []string{"log"}
	case under("/pods"), under("/runningpods"):
		return []string{"pods", "proxy"}
	case under("/healthz"):
		return []string{"healthz", "proxy"}
	case under("/configz"):
		return []string{"configz", "proxy"}
	}
	return []string{"proxy"}
}

func verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}

// allowed asks whether u may make the request; reason is for the caller.
func (a *authorizer) allowed(ctx context.Context, u *user, r *http.Request) (ok bool, reason string, err error) {
	subs := subresources(r.URL.Path)
	v := verb(r.Method)
	for _, sub := range subs {
		ok, err := a.ask(ctx, u, v, sub)
		if err != nil {
			return false, "", err
		}
		if ok {
			return true, "", nil
		}
	}
	return false, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.Name, v, subs), nil
}

func (a *authorizer) ask(ctx context.Context, u *user, verb, sub string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: u.Name, UID: u.UID, Groups: u.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.node},
	}
	for k, v := range u.Extra {
		spec.Extra[k] = v
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	if ok, found := a.cache.get(string(key)); found {
		return ok, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	res, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("subject access review: %w", err)
	}
	if res.Status.Allowed {
		a.cache.put(string(key), true, allowedTTL)
	} else {
		a.cache.put(string(key), false, deniedTTL)
	}
	return res.Status.Allowed, nil
}
