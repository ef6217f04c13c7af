package backup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config is a bucket of an S3-compatible object store. The zero value is none.
type S3Config struct {
	// Endpoint is its URL: https://HOST[:PORT]; http:// sends snapshots in the clear.
	Endpoint string `json:"endpoint,omitempty"`
	Bucket   string `json:"bucket,omitempty"`
	// Prefix goes before the names, such as "clusters/a/".
	Prefix string `json:"prefix,omitempty"`
	Region string `json:"region,omitempty"`
	// CAFile is the authority of the server's certificate; empty for the system's.
	CAFile string `json:"caFile,omitempty"`
	// AccessKeyFile and SecretKeyFile are files with the credentials.
	AccessKeyFile string `json:"accessKeyFile,omitempty"`
	SecretKeyFile string `json:"secretKeyFile,omitempty"`
}

// Set tells whether there is one.
func (c S3Config) Set() bool { return c != S3Config{} }

// Validate checks what can be checked without the files and the network.
func (c S3Config) Validate() error {
	if !c.Set() {
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil:
		return fmt.Errorf("endpoint: %q is not of the form https://HOST or https://HOST:PORT", c.Endpoint)
	case c.Bucket == "":
		return errors.New("bucket: none is given")
	}
	return absolute(map[string]string{"accessKeyFile": c.AccessKeyFile, "secretKeyFile": c.SecretKeyFile}, map[string]string{"caFile": c.CAFile})
}

// absolute checks that files are given, or not, by absolute paths.
func absolute(required, optional map[string]string) error {
	for _, set := range []map[string]string{required, optional} {
		for key, path := range set { // any of several mistakes will do
			if path != "" && !filepath.IsAbs(path) {
				return fmt.Errorf("%s: %q is not an absolute path", key, path)
			}
		}
	}
	for key, path := range required {
		if path == "" {
			return fmt.Errorf("%s: none is given", key)
		}
	}
	return nil
}

// S3 is a Destination. The files are read anew for each call, so that credentials can
// be changed at any time.
type S3 struct{ cfg S3Config }

// NewS3 returns the destination; see S3Config.Validate.
func NewS3(c S3Config) *S3 { return &S3{cfg: c} }

// Name is "s3".
func (s *S3) Name() string { return "s3" }

func (s *S3) client() (*minio.Client, error) {
	c := s.cfg
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, err
	}
	access, err := secret("snapshotS3.accessKeyFile", c.AccessKeyFile)
	if err != nil {
		return nil, err
	}
	key, err := secret("snapshotS3.secretKeyFile", c.SecretKeyFile)
	if err != nil {
		return nil, err
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("snapshotS3.caFile: %w", err)
		}
		tr.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !tr.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("snapshotS3.caFile: %s holds no certificate", c.CAFile)
		}
	}
	return minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4(access, key, ""), Secure: u.Scheme == "https", Region: c.Region, Transport: tr})
}

// do runs f with a client and names the place in its error.
func (s *S3) do(what string, f func(c *minio.Client) error) error {
	c, err := s.client()
	if err == nil {
		err = f(c)
	}
	if err != nil {
		return fmt.Errorf("%s at the bucket %s of %s: %w", what, s.cfg.Bucket, s.cfg.Endpoint, err)
	}
	return nil
}

// Put uploads a file; an object appears when it is whole.
func (s *S3) Put(ctx context.Context, path string) error {
	return s.do("store a snapshot", func(c *minio.Client) error {
		_, err := c.FPutObject(ctx, s.cfg.Bucket, s.cfg.Prefix+filepath.Base(path), path, minio.PutObjectOptions{ContentType: "application/octet-stream", SendContentMd5: true})
		return err
	})
}

// List returns the snapshots in the bucket below the prefix.
func (s *S3) List(ctx context.Context) (out []File, err error) {
	err = s.do("list the snapshots", func(c *minio.Client) error {
		for o := range c.ListObjects(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: s.cfg.Prefix}) {
			if o.Err != nil {
				return o.Err
			}
			if f, ok := ParseName(strings.TrimPrefix(o.Key, s.cfg.Prefix)); ok {
				f.Bytes = o.Size
				out = append(out, f)
			}
		}
		return nil
	})
	return out, err
}

// Get downloads an object.
func (s *S3) Get(ctx context.Context, name string, w io.Writer) error {
	return s.do("fetch the snapshot "+name, func(c *minio.Client) error {
		o, err := c.GetObject(ctx, s.cfg.Bucket, s.cfg.Prefix+name, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer o.Close()
		_, err = io.Copy(w, o)
		return err
	})
}

// Delete removes an object.
func (s *S3) Delete(ctx context.Context, name string) error {
	return s.do("delete the snapshot "+name, func(c *minio.Client) error {
		return c.RemoveObject(ctx, s.cfg.Bucket, s.cfg.Prefix+name, minio.RemoveObjectOptions{})
	})
}
