package apiserver_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/store"
)

// stored is what the store holds of a key.
func (c *cluster) stored(t *testing.T, key string) []byte {
	t.Helper()
	r, err := c.store.Range(&pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("%s: %d keys, %v", key, len(r.Kvs), err)
	}
	return r.Kvs[0].Value
}

// put writes past the API.
func (c *cluster) put(t *testing.T, key string, value []byte) {
	t.Helper()
	if _, err := store.NewLocal(c.store).Propose(testContext(t), &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Value: value}}); err != nil {
		t.Fatal(err)
	}
}

func secret(name, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": value}}
}

func TestKMSPluginEncrypts(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps := c.admin(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "enveloped"}, Data: map[string]string{"k": "plain-text"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if v := c.stored(t, "/registry/configmaps/default/enveloped"); !bytes.HasPrefix(v, []byte("k8s:enc:kms:v2:reversing:")) || bytes.Contains(v, []byte("plain-text")) {
		t.Errorf("the store holds %.60q", v)
	}
	if m, err := maps.Get(ctx, "enveloped", metav1.GetOptions{}); err != nil || m.Data["k"] != "plain-text" {
		t.Errorf("the API gives %v, %v", m.Data, err)
	}
}

// TestKeysAreRotatedOnline: a new key is taken into use by changing the file, and a
// file that cannot be used changes nothing and is told.
func TestKeysAreRotatedOnline(t *testing.T) {
	c, ctx := start(t), testContext(t)
	secrets := c.admin(t).CoreV1().Secrets("default")
	const key, value = "/registry/secrets/default/", "dont-store-me-plainly"
	// Something from before encryption.
	c.put(t, key+"old", []byte(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"old","namespace":"default","uid":"1"},"data":{"k":"YQ=="}}`))
	if _, err := secrets.Create(ctx, secret("rotated", value), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v := c.stored(t, key+"rotated")
	if !bytes.HasPrefix(v, []byte("k8s:enc:aescbc:v1:key1:")) || bytes.Contains(v, []byte(value)) {
		t.Fatalf("the store holds %.60q", v)
	}
	for _, next := range []struct{ keys, prefix string }{
		{"secretbox key2 aescbc key1", "k8s:enc:secretbox:v1:key2:"},
		{"aesgcm key3 secretbox key2", "k8s:enc:aesgcm:v1:key3:"},
	} {
		if err := c.outside.writeEncryption(strings.Fields(next.keys)...); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new keys are in force", func() error { return c.server.Encryption().Problem })
		// Written again as it is, a Secret takes the new key.
		s, err := secrets.Get(ctx, "rotated", metav1.GetOptions{})
		if err != nil || string(s.Data["k"]) != value {
			t.Fatalf("with new keys the API gives %q, %v", s.Data["k"], err)
		}
		if _, err := secrets.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if v := c.stored(t, key+"rotated"); !bytes.HasPrefix(v, []byte(next.prefix)) {
			t.Errorf("the store holds %.60q, want %s", v, next.prefix)
		}
	}
	if s, err := secrets.Get(ctx, "old", metav1.GetOptions{}); err != nil || string(s.Data["k"]) != "a" {
		t.Errorf("what was stored before encryption: %v, %v", s.Data, err)
	}
	want := "secrets: written with aesgcm key3, read also with secretbox key2, no encryption"
	if rules := c.server.Encryption().Rules; len(rules) != 2 || rules[0] != want || rules[1] != "configmaps: written with kms reversing, read also with no encryption" {
		t.Errorf("the rules are told as %q", rules)
	}

	if err := c.outside.write("encryption.yaml", "kind: EncryptionConfiguration\nresources: "+localKey("key9")); err != nil {
		t.Fatal(err)
	}
	if e := c.server.Encryption(); e.Problem == nil || strings.Contains(fmt.Sprint(e), localKey("key9")) {
		t.Errorf("a file that cannot be used is told as %v", e)
	}
	if _, err := secrets.Create(ctx, secret("meanwhile", value), metav1.CreateOptions{}); err != nil {
		t.Errorf("with a file that cannot be used: %v", err)
	}
	if err := c.outside.writeEncryption("aesgcm", "key3", "secretbox", "key2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.outside.path("encryption.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	if e := c.server.Encryption(); e.Problem == nil || !strings.Contains(e.Problem.Error(), "chmod 600") {
		t.Errorf("a file for everybody to read is told as %v", e.Problem)
	}
	if err := os.Chmod(c.outside.path("encryption.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is good again", func() error { return c.server.Encryption().Problem })
}

// TestCorruptObjectCanBeDeleted: one that cannot be read is told, does not go by a
// usual delete, and goes by the one that says so.
func TestCorruptObjectCanBeDeleted(t *testing.T) {
	c, ctx := start(t), testContext(t)
	leases := c.admin(t).CoordinationV1().Leases("default")
	c.put(t, "/registry/leases/default/corrupt", []byte("k8s:enc:aescbc:v1:lost:garbage"))
	eventually(t, "the object cannot be read", func() error {
		if _, err := leases.Get(ctx, "corrupt", metav1.GetOptions{}); !apierrors.IsInternalError(err) {
			return fmt.Errorf("a get gave %v", err)
		}
		return nil
	})
	if err := leases.Delete(ctx, "corrupt", metav1.DeleteOptions{}); err == nil {
		t.Error("a usual delete of what cannot be read worked")
	}
	const unsafe = "/apis/coordination.k8s.io/v1/namespaces/default/leases/corrupt?ignoreStoreReadErrorWithClusterBreakingPotential=true"
	if resp, b := ask(t, c, http.MethodDelete, unsafe, "application/json", "", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("an unsafe delete: %s: %s", resp.Status, b)
	}
	eventually(t, "the rest is listed again", func() error {
		_, err := leases.List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := leases.Get(ctx, "corrupt", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the delete a get gave %v", err)
	}
}
