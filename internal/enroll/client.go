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

// Client asks the operator. Its files are read for each question: a kubelet renews tokens, and an
// authority is rotated.
type Client struct {
	Endpoint  string // host:port
	CAFile    string // PEM certificates of the authorities that are trusted
	TokenFile string // of the pod's service account, for Audience
}

// askTime bounds one question, in which the operator asks the API server about the token.
const askTime = 10 * time.Second

// hint is what to look at when the operator cannot be asked.
const hint = "running volumes continue to work; check the pods of the Deployment gemel-operator"

// Enroll gives the credentials of this worker on a pair. ErrUnavailable, ErrRefused.
func (c *Client) Enroll(ctx context.Context, pair string) (a Answer, err error) {
	status, err := c.ask(ctx, Path, Request{Pair: pair}, &a)
	if err == nil {
		err = judge(status, a.Error, ErrUnavailable, ErrRefused)
	} else {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err != nil {
		return Answer{}, err
	}
	return a, nil
}

// Reach says how this worker reaches a volume. ErrReach, ErrNotReached.
func (c *Client) Reach(ctx context.Context, req ReachRequest) (r Reach, err error) {
	status, err := c.ask(ctx, PathReach, req, &r)
	if err == nil {
		err = judge(status, r.Error, ErrReach, ErrNotReached)
	} else {
		err = fmt.Errorf("%w: %w", ErrReach, err)
	}
	if err != nil {
		return Reach{}, err
	}
	return r, nil
}

// ask puts one question. An error says that there is no answer.
func (c *Client) ask(ctx context.Context, path string, question, answer any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return 0, fmt.Errorf("the token of the service account: %w", err)
	}
	t, err := c.tls()
	if err != nil {
		return 0, err
	}
	body, err := json.Marshal(question)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.Endpoint+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	// A connection for each question, which are rare: nothing of a former certificate or operator
	// is left. No proxy: it is the cluster's own network.
	tr := &http.Transport{TLSClientConfig: t, DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s does not answer (%w): %s", c.Endpoint, err, hint)
	}
	defer func() { _ = r.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(r.Body, MaxMessage))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.Endpoint, err)
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return 0, fmt.Errorf("%s answered %s with an invalid response: %s", c.Endpoint, r.Status, hint)
	}
	return r.StatusCode, nil
}

// judge turns a status into an error.
func judge(status int, text string, unavailable, refused error) error {
	switch {
	case status == http.StatusOK && text == "":
		return nil
	case status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusBadRequest:
		return fmt.Errorf("%w: %s", refused, text)
	}
	return fmt.Errorf("%w: %s", unavailable, text)
}

// tls trusts the authorities of CAFile for EnrollURI, which is checked in place of an address.
func (c *Client) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(c.CAFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist yet: the operator creates the ConfigMap, and the kubelet adds it to the pod within two minutes", c.CAFile)
	} else if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no PEM certificate", c.CAFile)
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
