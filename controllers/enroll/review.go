package enroll

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/internal/enroll"
)

// extraNode is where the API server names the worker of a token's pod (Kubernetes 1.32).
const extraNode = "authentication.kubernetes.io/node-name"

// errToken: the token is not that of a node plugin. The text does not contain the token.
var errToken = errors.New("the token is not that of a node plugin")

// Reviewer finds the worker of a node plugin's token.
type Reviewer interface {
	// Node names the worker; errToken if the token is not that of a node plugin. Any other error:
	// unknown.
	Node(ctx context.Context, token string) (string, error)
}

// Tokens reviews tokens with the API server.
type Tokens struct {
	Client         client.Client
	Namespace      string
	ServiceAccount string // default: that of node plugins
}

// Node implements Reviewer.
func (t *Tokens) Node(ctx context.Context, token string) (string, error) {
	r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{enroll.Audience}}}
	if err := t.Client.Create(ctx, r); err != nil {
		return "", fmt.Errorf("review the token: %w", err)
	}
	account := t.ServiceAccount
	if account == "" {
		account = enroll.ServiceAccount
	}
	return workerOf(&r.Status, "system:serviceaccount:"+t.Namespace+":"+account)
}

// workerOf evaluates the review of a token.
func workerOf(s *authenticationv1.TokenReviewStatus, user string) (string, error) {
	node := s.User.Extra[extraNode]
	switch {
	case !s.Authenticated:
		return "", fmt.Errorf("%w: the API server does not accept the token for the audience %s", errToken, enroll.Audience)
	case !slices.Contains(s.Audiences, enroll.Audience): // a server without audiences accepts every token
		return "", fmt.Errorf("%w: the token is not for the audience %s", errToken, enroll.Audience)
	case s.User.Username != user:
		return "", fmt.Errorf("%w: the token belongs to %s, not to %s", errToken, s.User.Username, user)
	case len(node) != 1 || node[0] == "":
		return "", fmt.Errorf("%w: the token does not name the worker of its pod: the token must be bound to a pod (a projected volume), and the API server must be of Kubernetes 1.32 or later", errToken)
	}
	return node[0], nil
}
