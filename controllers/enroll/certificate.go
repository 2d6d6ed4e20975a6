package enroll

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// FromSecret gives the certificate that a Secret holds now.
func FromSecret(c client.Reader, key client.ObjectKey) func(context.Context) (*tls.Certificate, error) {
	return func(ctx context.Context) (*tls.Certificate, error) {
		s := &corev1.Secret{}
		if err := c.Get(ctx, key, s); err != nil {
			return nil, err
		}
		p, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", key, err)
		}
		return &p, nil
	}
}

// Keep calls what keeps the certificate and its authority: now, and from then on every minute. A manager runs it in the replica that leads.
type Keep struct {
	Once func(context.Context) error
}

// NeedLeaderElection: two that make an authority at once would only get into each other's way.
func (*Keep) NeedLeaderElection() bool { return true }

const (
	keepEvery = time.Minute
	keepRetry = 2 * time.Second
)

// Start runs until the context ends.
func (k *Keep) Start(ctx context.Context) error {
	for {
		once, cancel := context.WithTimeout(ctx, keepEvery)
		err := k.Once(once)
		cancel()
		pause := keepEvery
		if err != nil && !errors.Is(err, context.Canceled) {
			log.FromContext(ctx).Error(err, "the enrolment endpoint's certificate")
			pause = keepRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
