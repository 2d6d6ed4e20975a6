// Package enroll is how a worker gets the CHAP credentials that it has on a pair: the node plugin
// asks the operator, over TLS, with the token of its own service account, which says on which
// worker it is (docs/decisions/0029). In the same way it says that it has replayed the log of a
// filesystem (docs/decisions/0049). Here are what the two say to each other and the worker's side.
package enroll

import (
	"errors"
	"fmt"
)

// Path of the endpoint: POST, Request in, Answer out, as JSON. The token is the bearer of the
// Authorization header.
const Path = "/v1/enroll"

// PathReach is where a worker asks how it reaches a volume now: POST, ReachRequest in, Reach out.
const PathReach = "/v1/reach"

// Audience of the token: it is good for nothing else, and no other token is good for this.
const Audience = "gemel.storage/enroll"

// ServiceAccount of node plugins, in the operator's namespace.
const ServiceAccount = "gemel-csi-node"

// ReachRequest asks how the worker that asks reaches a volume.
type ReachRequest struct {
	Volume string `json:"volume"` // LogicalUnit
	// Replayed is the generation of the mapping under which the worker has replayed the log of the
	// volume's filesystem; 0: it has not.
	Replayed int64 `json:"replayed,omitempty"`
}

// Reach is the mapping of a LUN to the worker. With an Error there is nothing else.
type Reach struct {
	Error      string   `json:"error,omitempty"`
	TargetIQN  string   `json:"targetIQN,omitempty"`
	Portals    []string `json:"portals,omitempty"`
	LUN        int32    `json:"lun,omitempty"`
	WWID       string   `json:"wwid,omitempty"`
	Generation int64    `json:"generation,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"`
	Pair       string   `json:"pair,omitempty"`
	CHAP       bool     `json:"chap,omitempty"` // the targets require credentials, which the worker requests separately
}

// MaxMessage bounds a request and an answer, in bytes.
const MaxMessage = 4 << 10

// Request asks for the credentials of the worker that asks.
type Request struct {
	Pair string `json:"pair"` // TargetPair
}

// Answer is what the worker proves (User, Secret) and what the targets have to (MutualUser,
// MutualSecret); all empty where the pair lets the worker in by its name. With an Error there is
// nothing else.
type Answer struct {
	Error        string `json:"error,omitempty"`
	User         string `json:"user,omitempty"`
	Secret       string `json:"secret,omitempty"`
	MutualUser   string `json:"mutualUser,omitempty"`
	MutualSecret string `json:"mutualSecret,omitempty"`
}

// String hides the secrets.
func (a Answer) String() string {
	if a.Error != "" {
		return "error: " + a.Error
	}
	return fmt.Sprintf("chap(%s, %s)", a.User, a.MutualUser)
}

// GoString hides the secrets.
func (a Answer) GoString() string { return a.String() }

// Errors of a Client. Test for them with errors.Is.
var (
	// ErrUnavailable: the operator cannot be asked now, or cannot answer yet. Trying again helps.
	ErrUnavailable = errors.New("the operator cannot give credentials now")
	// ErrRefused: the operator gives this worker no credentials. The text says why.
	ErrRefused = errors.New("the operator refuses credentials")
	// ErrReach: as ErrUnavailable, of how a volume is reached.
	ErrReach = errors.New("the operator cannot say now how to reach the volume")
	// ErrNotReached: as ErrRefused, of how a volume is reached.
	ErrNotReached = errors.New("the operator does not allow this worker to reach the volume")
)
