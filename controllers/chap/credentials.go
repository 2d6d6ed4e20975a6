// Package chap keeps the CHAP credentials with which a worker and the targets of a pair
// authenticate each other: a Secret for each worker and pair, in the operator's namespace
// (docs/decisions/0029). The targets get them with the mapping of a LUN, the worker by enrolment.
package chap

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Credentials of both directions. They print without the secrets.
type Credentials struct {
	Host                     string // name of the Host object that they were created for
	IQN                      string
	User, Secret             string // the worker proves these
	MutualUser, MutualSecret string // and the targets these
}

// String hides the secrets.
func (c Credentials) String() string { return fmt.Sprintf("chap(%s, %s)", c.User, c.MutualUser) }

// GoString hides the secrets.
func (c Credentials) GoString() string { return c.String() }

// Proto converts to the message for the targets.
func (c *Credentials) Proto() *targetv1.CHAP {
	if c == nil {
		return nil
	}
	return &targetv1.CHAP{User: c.User, Secret: c.Secret, MutualUser: c.MutualUser, MutualSecret: c.MutualSecret}
}

// Name is the user, which identifies credentials; empty for nil.
func (c *Credentials) Name() string {
	if c == nil {
		return ""
	}
	return c.User
}

// Keys of the Secret.
const (
	keyUser         = "user"
	keySecret       = "secret"
	keyMutualUser   = "mutualUser"
	keyMutualSecret = "mutualSecret"
)

// Annotations of the Secret: whose credentials they are.
const (
	annotationHost = "gemel.storage/host"
	annotationIQN  = "gemel.storage/iqn"
)

// SecretType of credentials.
const SecretType corev1.SecretType = "gemel.storage/chap"

// SecretName of a worker's credentials on a pair. It hashes the iSCSI name, whose characters may be
// invalid in the name of an object.
func SecretName(pair, iqn string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(iqn)))
	return "gemel-" + pair + "-chap-" + hex.EncodeToString(sum[:8])
}

// Labels of the Secrets of one pair.
func Labels(pair string) map[string]string {
	l := maps.Clone(pairconn.SecretLabels)
	l[v1alpha1.LabelPair], l[v1alpha1.LabelComponent] = pair, v1alpha1.ComponentCHAP
	return l
}

// random returns n random bytes as text.
func random(n int, text func([]byte) string) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return text(b)
}

// generate creates credentials. The users are new as well, so that credentials can be compared
// without their secrets.
func generate(host, iqn string) Credentials {
	id := random(6, hex.EncodeToString)
	secret := func() string { return random(24, base64.RawURLEncoding.EncodeToString) }
	return Credentials{Host: host, IQN: strings.ToLower(iqn), User: "host-" + id, Secret: secret(), MutualUser: "pair-" + id, MutualSecret: secret()}
}

// object is the Secret of credentials. It is immutable: credentials change only by its deletion,
// which every watcher sees.
func (c *Credentials) object(namespace, cluster, pair string) *corev1.Secret {
	l := Labels(pair)
	l[v1alpha1.LabelCluster] = cluster
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: SecretName(pair, c.IQN), Labels: l,
		Annotations: map[string]string{annotationHost: c.Host, annotationIQN: c.IQN}}, Type: SecretType, Immutable: ptr.To(true),
		Data: map[string][]byte{keyUser: []byte(c.User), keySecret: []byte(c.Secret), keyMutualUser: []byte(c.MutualUser), keyMutualSecret: []byte(c.MutualSecret)}}
}

// ErrDamaged: a Secret has no valid credentials.
var ErrDamaged = errors.New("the Secret does not contain CHAP credentials that targets accept: delete the Secret, and the operator creates new credentials")

// Of reads credentials from their Secret. ErrDamaged.
func Of(s *corev1.Secret) (*Credentials, error) {
	c := &Credentials{Host: s.Annotations[annotationHost], IQN: s.Annotations[annotationIQN], User: string(s.Data[keyUser]), Secret: string(s.Data[keySecret]),
		MutualUser: string(s.Data[keyMutualUser]), MutualSecret: string(s.Data[keyMutualSecret])}
	long := func(secret string) bool { return len(secret) >= 12 && len(secret) <= 255 } // as for targets
	if c.Host == "" || c.IQN == "" || c.User == "" || c.MutualUser == "" || !long(c.Secret) || !long(c.MutualSecret) || c.Secret == c.MutualSecret {
		return nil, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, ErrDamaged)
	}
	return c, nil
}

// OfPair reports whether a Secret has credentials, and for which pair and host.
func OfPair(s *corev1.Secret) (pair, iqn string, ok bool) {
	pair, iqn = s.Labels[v1alpha1.LabelPair], s.Annotations[annotationIQN]
	return pair, iqn, s.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentCHAP && pair != "" && iqn != ""
}
