package bootstrap

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/tripod-cluster/tripod/pki"
)

// fakeAPI is as much of a cluster as a joining node sees, over real TLS.
type fakeAPI struct {
	ca    *pki.Authority
	srv   *httptest.Server
	token pki.Token

	mu       sync.Mutex
	offset   time.Duration // of the server's clock
	approve  bool
	deny     string
	life     time.Duration // of certificates signed
	csrs     map[string]*certificatesv1.CertificateSigningRequest
	node     *v1.Node // what a reader of the node's own object gets; nil: none
	lease    *coordinationv1.Lease
	slices   []discoveryv1.EndpointSlice
	lastUser string
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	ca, err := pki.NewAuthority("kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := pki.NewToken(pki.RoleNode, pki.HashCA(ca.Cert))
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeAPI{ca: ca, token: tok, approve: true, life: time.Hour, csrs: map[string]*certificatesv1.CertificateSigningRequest{}}
	f.serve(t, time.Now())
	return f
}

// serve starts the server with a certificate issued at the given time.
func (f *fakeAPI) serve(t *testing.T, issued time.Time) {
	t.Helper()
	cert, key, err := f.ca.Issue(pki.Leaf{CommonName: "kube-apiserver", DNSNames: []string{pki.ServerName}, Server: true}, issued)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	f.srv = httptest.NewUnstartedServer(f)
	f.srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	f.srv.EnableHTTP2 = true
	f.srv.Config.ErrorLog = nil
	f.srv.StartTLS()
	t.Cleanup(f.srv.Close)
}

func (f *fakeAPI) addr() string { return f.srv.Listener.Addr().String() }

func (f *fakeAPI) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fakeAPI) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, msg string) {
	f.answer(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: msg})
}

func (f *fakeAPI) user(r *http.Request) string {
	if len(r.TLS.PeerCertificates) > 0 {
		if _, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: f.ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
			return r.TLS.PeerCertificates[0].Subject.CommonName
		}
	}
	if r.Header.Get("Authorization") == "Bearer "+f.token.Bearer() {
		return "system:bootstrap:" + f.token.ID
	}
	return ""
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(f.offset).UTC().Format(http.TimeFormat))
	if r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
		fmt.Fprint(w, "ok")
		return
	}
	u := f.user(r)
	if u == "" {
		f.refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	f.lastUser = u
	const csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch p := r.URL.Path; {
	case p == csrs && r.Method == http.MethodPost:
		b, _ := io.ReadAll(r.Body)
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
		c, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if err != nil || !ok {
			f.refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "not a request")
			return
		}
		c.Name = fmt.Sprintf("%s%d", c.GenerateName, len(f.csrs))
		c.TypeMeta = metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"}
		f.csrs[c.Name] = c
		f.answer(w, http.StatusCreated, c)
	case strings.HasPrefix(p, csrs+"/"):
		c := f.csrs[strings.TrimPrefix(p, csrs+"/")]
		if c == nil {
			f.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "gone")
			return
		}
		if err := f.decide(c); err != nil {
			f.refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
			return
		}
		f.answer(w, http.StatusOK, c)
	case strings.HasPrefix(p, "/api/v1/nodes/"):
		if f.node == nil || !strings.HasPrefix(u, UserPrefix) {
			f.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no node")
			return
		}
		f.node.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		f.answer(w, http.StatusOK, f.node)
	case strings.HasPrefix(p, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"):
		if f.lease == nil {
			f.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no lease")
			return
		}
		f.lease.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
		f.answer(w, http.StatusOK, f.lease)
	case p == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices":
		f.answer(w, http.StatusOK, discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, Items: f.slices})
	default:
		f.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, p)
	}
}

// decide plays the controllers that approve and sign.
func (f *fakeAPI) decide(c *certificatesv1.CertificateSigningRequest) error {
	if f.deny != "" {
		c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: v1.ConditionTrue, Reason: "Refused", Message: f.deny}}
		return nil
	}
	if !f.approve || len(c.Status.Certificate) > 0 {
		return nil
	}
	block, _ := pem.Decode(c.Spec.Request)
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	use := x509.ExtKeyUsageClientAuth
	if c.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		use = x509.ExtKeyUsageServerAuth
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(int64(len(f.csrs)) + 100), Subject: req.Subject,
		DNSNames: req.DNSNames, IPAddresses: req.IPAddresses, NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(f.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}}, f.ca.Cert, req.PublicKey, f.ca.Key)
	if err != nil {
		return err
	}
	c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue}}
	c.Status.Certificate = pki.EncodeCert(der)
	return nil
}

// fakeHost is a machine with containerd.
type fakeHost struct {
	uid        int
	machineID  string
	busy       map[string]bool // addresses in use
	noCRI      bool            // and it cannot be started
	ctl        []string        // systemctl calls
	active     bool
	onStart    func()
	isDefault  bool
	restartErr error
}

func (h *fakeHost) UID() int          { return h.uid }
func (h *fakeHost) MachineID() string { return h.machineID }
func (h *fakeHost) PortFree(a string) error {
	if h.busy[a] {
		return errors.New("address already in use")
	}
	return nil
}
func (h *fakeHost) CRI(context.Context) error {
	if h.noCRI {
		return errors.New("no such file or directory")
	}
	return nil
}
func (h *fakeHost) Systemctl(_ context.Context, args ...string) error {
	h.ctl = append(h.ctl, strings.Join(args, " "))
	if h.noCRI && args[0] == "start" {
		return errors.New("unit containerd.service not found")
	}
	if args[0] == "restart" && args[1] == "containerd.service" {
		return h.restartErr
	}
	if args[0] == "enable" {
		h.active = true
		if h.onStart != nil {
			h.onStart()
		}
	}
	return nil
}
func (h *fakeHost) ServiceActive(context.Context, string) bool { return h.active }
func (h *fakeHost) ContainerdSettings(context.Context) (ContainerdSettings, error) {
	return ContainerdSettings{Major: 1, Minor: 6, SandboxImage: DefaultSandboxImage, CNIBinDir: "/usr/lib/cni", CNIConfDir: "/etc/cni/net.d"}, nil
}
func (h *fakeHost) PackageDefault(string, []byte) bool { return h.isDefault }

// tree lists the files below dir with their contents, for comparing states.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		out[strings.TrimPrefix(p, dir)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
