package pki

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// ServerName is the name that every API serving certificate carries, and that a
// client verifies whichever peer it dials.
const ServerName = "kubernetes"

// Bundle is what makes a cluster: its authorities and the ServiceAccount key, in
// PEM. It is what a joining peer receives, and is secret.
type Bundle struct {
	CA           Pair   `json:"ca"`
	PeerCA       Pair   `json:"peerCA"`
	EtcdCA       Pair   `json:"etcdCA"`
	FrontProxyCA Pair   `json:"frontProxyCA"`
	SAKey        []byte `json:"saKey"`
}

// Pair is a certificate with its private key, in PEM.
type Pair struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// String keeps key material out of logs.
func (Bundle) String() string { return "pki.Bundle(secret)" }

// NewBundle makes the authorities of a new cluster.
func NewBundle(now time.Time) (*Bundle, error) {
	b := &Bundle{}
	for _, x := range []struct {
		name string
		to   *Pair
	}{{"tripod-ca", &b.CA}, {"tripod-peer-ca", &b.PeerCA}, {"tripod-etcd-ca", &b.EtcdCA}, {"tripod-front-proxy-ca", &b.FrontProxyCA}} {
		a, err := NewAuthority(x.name, now)
		if err != nil {
			return nil, err
		}
		key, err := EncodeKey(a.Key)
		if err != nil {
			return nil, err
		}
		*x.to = Pair{Cert: a.CertPEM(), Key: key}
	}
	sa, err := newServiceAccountKey()
	if err != nil {
		return nil, err
	}
	b.SAKey, err = EncodeKey(sa)
	return b, err
}

// Dir is the PKI directory of one peer.
type Dir string

// The files of a peer, below the directory.
func (d Dir) file(name string) string { return filepath.Join(string(d), name) }

func (d Dir) CACert() string           { return d.file("ca.crt") }
func (d Dir) CAKey() string            { return d.file("ca.key") }
func (d Dir) PeerCACert() string       { return d.file("peer-ca.crt") }
func (d Dir) FrontProxyCACert() string { return d.file("front-proxy-ca.crt") }
func (d Dir) EtcdCACert() string       { return d.file("etcd/ca.crt") }
func (d Dir) SAKey() string            { return d.file("sa.key") }
func (d Dir) SAPub() string            { return d.file("sa.pub") }
func (d Dir) APIServer() Files         { return d.pair("apiserver") }
func (d Dir) KubeletClient() Files     { return d.pair("apiserver-kubelet-client") }
func (d Dir) FrontProxyClient() Files  { return d.pair("front-proxy-client") }
func (d Dir) Peer() Files              { return d.pair("peer") }
func (d Dir) EtcdServer() Files        { return d.pair("etcd/server") }
func (d Dir) EtcdClient() Files        { return d.pair("etcd/client") }
func (d Dir) pair(name string) Files   { return Files{d.file(name + ".crt"), d.file(name + ".key")} }
func (d Dir) authority(n string) Files { return d.pair(n) }

// Files names a certificate and its key.
type Files struct{ Cert, Key string }

// Write stores the bundle in the directory. An existing authority is never
// replaced by another: that would cut off the cluster it belongs to.
func (b *Bundle) Write(d Dir) error {
	for _, x := range []struct {
		name string
		p    Pair
	}{{"ca", b.CA}, {"peer-ca", b.PeerCA}, {"etcd/ca", b.EtcdCA}, {"front-proxy-ca", b.FrontProxyCA}} {
		a, err := ParseAuthority(x.p.Cert, x.p.Key)
		if err != nil {
			return fmt.Errorf("authority %s: %w", x.name, err)
		}
		f := d.authority(x.name)
		if old, err := os.ReadFile(f.Cert); err == nil {
			c, err := ParseCert(old)
			if err != nil || HashCA(c) != HashCA(a.Cert) {
				return fmt.Errorf("%s holds another authority already: this host belongs to another cluster; `controld reset` removes it", f.Cert)
			}
		}
		if err := WriteFile(f.Key, x.p.Key, 0o600); err != nil {
			return err
		}
		if err := WriteFile(f.Cert, x.p.Cert, 0o644); err != nil {
			return err
		}
	}
	k, err := ParseKey(b.SAKey)
	if err != nil {
		return fmt.Errorf("ServiceAccount key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		return fmt.Errorf("ServiceAccount key: %w", err)
	}
	if err := WriteFile(d.SAKey(), b.SAKey, 0o600); err != nil {
		return err
	}
	return WriteFile(d.SAPub(), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
}

// ReadBundle reads the authorities of the cluster that this peer belongs to.
func ReadBundle(d Dir) (*Bundle, error) {
	b := &Bundle{}
	for _, x := range []struct {
		name string
		to   *Pair
	}{{"ca", &b.CA}, {"peer-ca", &b.PeerCA}, {"etcd/ca", &b.EtcdCA}, {"front-proxy-ca", &b.FrontProxyCA}} {
		f := d.authority(x.name)
		var err error
		if x.to.Cert, err = os.ReadFile(f.Cert); err == nil {
			x.to.Key, err = os.ReadFile(f.Key)
		}
		if err != nil {
			return nil, fmt.Errorf("read authority: %w", err)
		}
	}
	var err error
	if b.SAKey, err = os.ReadFile(d.SAKey()); err != nil {
		return nil, fmt.Errorf("read ServiceAccount key: %w", err)
	}
	return b, nil
}

// Authority reads the cluster CA with its key, for signing certificates of nodes.
func (d Dir) Authority() (*Authority, error) { return d.readAuthority("ca") }

func (d Dir) readAuthority(name string) (*Authority, error) {
	f := d.authority(name)
	c, err := os.ReadFile(f.Cert)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	k, err := os.ReadFile(f.Key)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	a, err := ParseAuthority(c, k)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", f.Cert, err)
	}
	return a, nil
}

// Host is what the certificates of one peer name.
type Host struct {
	Name      string   // the peer's name
	ID        string   // the peer's raft ID, in its peer certificate
	Addresses []net.IP // every address that a client may dial, the vip among them
	ServiceIP net.IP   // first address of the service CIDR
}

// renewBefore is the part of a certificate's life that is left when it is made anew.
const renewBefore = 3 // a third

// EnsureHost makes the certificates of a peer that are missing, that no longer
// name what h names, or that have less than a third of their life left. It
// returns the names of those it made.
func EnsureHost(d Dir, h Host, now time.Time) ([]string, error) {
	local := []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}
	ips := append(slices.Clone(h.Addresses), local...)
	dns := []string{h.Name, "localhost"}
	type want struct {
		ca, name string
		leaf     Leaf
	}
	wants := []want{
		{"ca", "apiserver", Leaf{CommonName: "kube-apiserver", Server: true,
			DNSNames: append([]string{ServerName, "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}, dns...),
			IPs:      append([]net.IP{h.ServiceIP}, ips...)}},
		{"ca", "apiserver-kubelet-client", Leaf{CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}, Client: true}},
		{"front-proxy-ca", "front-proxy-client", Leaf{CommonName: "front-proxy-client", Client: true}},
		{"peer-ca", "peer", Leaf{CommonName: h.ID, Server: true, Client: true, DNSNames: []string{h.ID, h.Name}, IPs: ips}},
		{"etcd/ca", "etcd/server", Leaf{CommonName: h.Name, Server: true, Client: true, DNSNames: dns, IPs: ips}},
		{"etcd/ca", "etcd/client", Leaf{CommonName: "root", Client: true}},
	}
	var made []string
	for _, w := range wants {
		f := d.pair(w.name)
		ok, err := current(f, w.leaf, now)
		if err != nil {
			return made, err
		}
		if ok {
			continue
		}
		ca, err := d.readAuthority(w.ca)
		if err != nil {
			return made, err
		}
		cert, key, err := ca.Issue(w.leaf, now)
		if err != nil {
			return made, err
		}
		if err := WriteFile(f.Key, key, 0o600); err != nil {
			return made, err
		}
		if err := WriteFile(f.Cert, cert, 0o644); err != nil {
			return made, err
		}
		made = append(made, w.name)
	}
	return made, nil
}

func current(f Files, l Leaf, now time.Time) (bool, error) {
	for _, p := range []string{f.Cert, f.Key} {
		if ok, err := exists(p); err != nil || !ok {
			return false, err
		}
	}
	certPEM, err := os.ReadFile(f.Cert)
	if err != nil {
		return false, err
	}
	keyPEM, err := os.ReadFile(f.Key)
	if err != nil {
		return false, err
	}
	c, err := ParseCert(certPEM)
	if err != nil {
		return false, nil // damaged: made anew
	}
	k, err := ParseKey(keyPEM)
	if err != nil {
		return false, nil
	}
	if pub, ok := k.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(c.PublicKey) {
		return false, nil // written halfway: certificate and key of different generations
	}
	if c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/renewBefore || now.Before(c.NotBefore) {
		return false, nil
	}
	for _, n := range l.DNSNames {
		if !slices.Contains(c.DNSNames, n) {
			return false, nil
		}
	}
	for _, ip := range l.IPs {
		if ip != nil && !slices.ContainsFunc(c.IPAddresses, ip.Equal) {
			return false, nil
		}
	}
	return c.Subject.CommonName == l.CommonName, nil
}
