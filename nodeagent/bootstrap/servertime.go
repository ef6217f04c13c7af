package bootstrap

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tripod-cluster/tripod/pki"
)

// serverTime reads the server's clock from the Date of an answer, and this
// host's at the middle of the exchange. Nothing secret is sent and the
// certificate is not verified: a wrong clock is why that would fail.
func serverTime(ctx context.Context, server string) (there, here time.Time, err error) {
	t := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: pki.ServerName, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+"/livez", nil)
	if err != nil {
		return there, here, err
	}
	began := time.Now()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return there, here, err
	}
	took := time.Since(began)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	there, err = http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return there, here, fmt.Errorf("the answer carries no time: %w", err)
	}
	return there, began.Add(took / 2), nil
}
