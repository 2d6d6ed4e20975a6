package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/pki"
)

// Client asks the operator. Its files are read for each question: a kubelet renews tokens, and an authority is rotated.
type Client struct {
	Endpoint  string // host:port
	CAFile    string // PEM certificates of the authorities that are trusted
	TokenFile string // of the pod's service account, for Audience
}

// askTime bounds one question, in which the operator asks the API server about the token.
const askTime = 10 * time.Second

// hint is what to look at when the operator can not be asked.
const hint = "running volumes go on; look at the pods of the Deployment gemel-operator"

// Enroll gives the credentials of this worker on a pair. ErrUnavailable, ErrRefused.
func (c *Client) Enroll(ctx context.Context, pair string) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return a, fmt.Errorf("%w: the token of the service account: %w", ErrUnavailable, err)
	}
	t, err := c.tls()
	if err != nil {
		return a, err
	}
	body, err := json.Marshal(Request{Pair: pair})
	if err != nil {
		return a, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.Endpoint+Path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	q.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	q.Header.Set("Content-Type", "application/json")
	// A connection for each question, which are rare: nothing of a former certificate or operator is left. No proxy: it is the cluster's own network.
	tr := &http.Transport{TLSClientConfig: t, DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(q)
	if err != nil {
		return a, fmt.Errorf("%w: %s does not answer (%w): %s", ErrUnavailable, c.Endpoint, err, hint)
	}
	defer func() { _ = r.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(r.Body, MaxMessage))
	if err != nil {
		return a, fmt.Errorf("%w: %s: %w", ErrUnavailable, c.Endpoint, err)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return Answer{}, fmt.Errorf("%w: %s answers %s with what is no answer: %s", ErrUnavailable, c.Endpoint, r.Status, hint)
	}
	return judge(r.StatusCode, a)
}

// judge turns a status into an error.
func judge(status int, a Answer) (Answer, error) {
	switch {
	case status == http.StatusOK && a.Error == "":
		return a, nil
	case status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusBadRequest:
		return Answer{}, fmt.Errorf("%w: %s", ErrRefused, a.Error)
	}
	return Answer{}, fmt.Errorf("%w: %s", ErrUnavailable, a.Error)
}

// tls trusts the authorities of CAFile for EnrollURI, which is checked in place of an address.
func (c *Client) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(c.CAFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s yet: the operator makes the ConfigMap, and the kubelet brings it into the pod within a minute or two", ErrUnavailable, c.CAFile)
	} else if err != nil {
		return nil, fmt.Errorf("%w: authorities: %w", ErrUnavailable, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: %s holds no PEM certificate", ErrUnavailable, c.CAFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // replaced by VerifyConnection: the chain as ever, and the URI in place of the host name
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := pki.VerifyChain(s, roots); err != nil {
				return err
			}
			return pki.RequireURI(pki.EnrollURI)(s)
		}}, nil
}
