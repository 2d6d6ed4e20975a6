package enroll

import (
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/gemel-storage/gemel/internal/enroll"
)

func TestReviewRejectsOtherTokens(t *testing.T) {
	const user = "system:serviceaccount:ns:gemel-csi-node"
	good := func() *authenticationv1.TokenReviewStatus {
		return &authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{enroll.Audience},
			User: authenticationv1.UserInfo{Username: user, Extra: map[string]authenticationv1.ExtraValue{extraNode: {"worker"}}}}
	}
	if node, err := workerOf(good(), user); node != "worker" || err != nil {
		t.Errorf("%q, %v", node, err)
	}
	for name, change := range map[string]func(*authenticationv1.TokenReviewStatus){
		"not known":    func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false },
		"audience":     func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"https://kubernetes.default.svc"} },
		"any audience": func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil },
		"somebody-else": func(s *authenticationv1.TokenReviewStatus) {
			s.User.Username = "system:serviceaccount:ns:somebody-else"
		},
		"Kubernetes 1.32": func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil },
		"bound to a pod": func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra[extraNode] = authenticationv1.ExtraValue{"a", "b"}
		},
		"the worker of its pod": func(s *authenticationv1.TokenReviewStatus) { s.User.Extra[extraNode] = authenticationv1.ExtraValue{""} },
	} {
		s := good()
		change(s)
		says := strings.TrimPrefix(name, "any ")
		if name == "not known" {
			says = "does not accept the token"
		}
		if _, err := workerOf(s, user); !errors.Is(err, errToken) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
