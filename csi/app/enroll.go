package app

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/credentials"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// checkEnroll checks the flags of enrolment. The files need not exist: the operator may create one
// of them later.
func (c *config) checkEnroll(bad func(flag, format string, args ...any)) {
	if c.EnrollEndpoint == "" {
		if c.EnrollCA != "" || c.EnrollToken != "" {
			bad("enroll-endpoint", "is required by --enroll-ca and --enroll-token")
		}
		return
	}
	if _, _, err := net.SplitHostPort(c.EnrollEndpoint); err != nil {
		bad("enroll-endpoint", "%w", err)
	}
	if !filepath.IsAbs(c.EnrollCA) {
		bad("enroll-ca", "%q is not an absolute path", c.EnrollCA)
	}
	if !filepath.IsAbs(c.EnrollToken) {
		bad("enroll-token", "%q is not an absolute path", c.EnrollToken)
	}
}

// credentials returns the keeper of this worker's credentials, nil without enrolment; until stop is
// called, it renews rejected credentials of attachments.
func (c *config) credentials(ctx context.Context, a attach.Attacher, reg prometheus.Registerer, log *slog.Logger) (k *credentials.Keeper, stop func(), err error) {
	if c.EnrollEndpoint == "" {
		return nil, func() {}, nil
	}
	k, err = credentials.New(&enroll.Client{Endpoint: c.EnrollEndpoint, CAFile: c.EnrollCA, TokenFile: c.EnrollToken}, reg, log)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { k.Renew(ctx, a) })
	return k, func() { cancel(); wg.Wait() }, nil
}
