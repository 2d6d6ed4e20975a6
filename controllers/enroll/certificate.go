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

// FromSecret reads the current certificate from a Secret.
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

// Keep reconciles the certificate and its authority every minute. A manager runs it in the leader.
type Keep struct {
	Once func(context.Context) error
}

// NeedLeaderElection: concurrent reconciles would conflict.
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
			log.FromContext(ctx).Error(err, "cannot reconcile the certificate of the enrolment endpoint")
			pause = keepRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
